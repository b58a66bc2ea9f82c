"""Connections to Kafka and Cassandra: TLS, logins, probes and retries. Knows no topic and no table."""
