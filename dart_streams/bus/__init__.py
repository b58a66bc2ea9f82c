"""Kafka: the codec, headers, asynchronous and synchronous clients, dead letters, and topics as code.

Asynchronous processes use aiokafka, synchronous ones kafka-python. What an event means is not known here.
"""
