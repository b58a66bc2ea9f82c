"""OpenTelemetry and logs of a process: set-up, the one list of names, spans, trace context over Kafka headers.

Knows no Kafka client and no decision. Telemetry never fails a worker, and never makes one wait.
"""
