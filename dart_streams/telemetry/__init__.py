"""OpenTelemetry and logs of a process: set-up, the list of names, spans, and trace context in Kafka headers.

Imports no Kafka client and no decision. Telemetry never fails a worker and never blocks one.
"""
