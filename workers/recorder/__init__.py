"""The recorder: observations into the store, then the finished trajectory to everyone. ``summary`` is its pure core."""
