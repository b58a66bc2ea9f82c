"""How any client reaches Kafka or Cassandra: TLS and login, probes, retries, and why a connection was rejected.

Knows no topic and no table; imports no client library.
"""
