"""The monitor reports stalled topics and consumer lag. It only reads, and nothing may depend on it."""
