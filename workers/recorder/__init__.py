"""The recorder: observations into the store, then the finished trajectory to everyone. :mod:`dart_streams.summary` is its pure core."""
