"""OpenTelemetry: set-up, names in one module, W3C trace context over Kafka headers. Telemetry never fails a worker."""
