"""Training process: consumes curated groups, publishes weight versions.

``main`` starts it; ``data`` builds batches; ``learning`` has the model and its step; ``objective`` is pure math on
tensors.
"""
