"""Curated groups to batches: consume, read ahead from the store, select samples, collate to tensors.

Knows no model; the only module with tensors is ``collate``.
"""
