"""The monitor process: reports stalls and consumer lag. It only reads; nothing may depend on it."""
