"""Kafka: codec, clients, offsets and lag, dead letters, and topics as code; unaware of what events mean.

Asynchronous processes use aiokafka, synchronous ones kafka-python.
"""
