"""Kafka: the codec, asynchronous and synchronous clients, offsets and lag, dead letters, and topics as code.

Asynchronous processes use aiokafka, synchronous ones kafka-python. What an event means is not known here.
"""
