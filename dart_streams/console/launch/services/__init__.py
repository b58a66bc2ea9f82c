"""The local Kafka and Cassandra: JVM daemons of this machine, for a laptop without Docker.

Starts, finds, checks and stops them. Knows no topic and no table, and no worker needs it.
"""
