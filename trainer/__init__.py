"""The training process: curated groups in, weight versions out.

``main`` is its life; ``consumer``, ``prefetch`` and ``batch`` bring data; ``objective`` is pure mathematics on tensors;
``policy``, ``step``, ``checkpoint`` and ``publish`` are the model's side. Nothing here knows environments or curation.
"""
