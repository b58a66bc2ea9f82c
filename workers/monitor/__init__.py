"""The monitor: reports stalled topics and consumer lag.

It only reads, through dart_streams.history; nothing may depend on it.
"""
