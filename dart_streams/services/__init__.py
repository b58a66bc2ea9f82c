"""The local Kafka and Cassandra: real ones, run as JVM daemons of this machine, for a laptop without Docker.

What lives here starts, finds, checks and stops them. Nothing here speaks to topics or tables, and no worker needs it:
a deployment that has its own broker and database never imports this package.
"""
