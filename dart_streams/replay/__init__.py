"""Runs in one file: captured from the topics, verified, replayed without services, published again.

Imports neither Kafka nor Cassandra but where records leave or enter them (``capture``, ``republish``).
"""
