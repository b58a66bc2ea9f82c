"""The monitor: reports stalled topics and consumer lag.

It only reads, through dart_streams.console.runs; nothing may depend on it.
"""
