"""Curated groups to batches: consume, read ahead from the store, select samples, collate to tensors.

Imports no model; the only module with tensors is ``collate``.
"""
