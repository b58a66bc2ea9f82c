"""The training process: curated groups in, weight versions out.

``main`` is its life; ``data`` consumes, reads and batches; ``learning`` is the model and its step; ``objective`` is
pure mathematics on tensors. No module depends on environments or on curation's state.
"""
