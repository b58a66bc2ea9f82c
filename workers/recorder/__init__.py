"""The recorder: observations into the store, then the finished trajectory to everyone."""
