"""Mends that are undone one at a time, and the tests that have to fail then: ``make mutants``.

``mends.toml`` keeps them as replacements of text. Nothing here is imported by the product.
"""
