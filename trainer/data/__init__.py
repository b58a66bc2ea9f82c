"""Batches of curated groups: consume, read ahead, select samples, collate. Only ``collate`` uses tensors; no model."""
