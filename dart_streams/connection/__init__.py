"""How any client reaches Kafka or Cassandra: TLS and credentials, protocol probes, and why a connection was refused.

Knows no topic and no table; imports no client library.
"""
