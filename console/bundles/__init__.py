"""Bundles: captured, published again, replayed, asked what-if, and trained on again."""
