"""The monitor process: reports where the circle stands still. It only reads; nothing may depend on it."""
