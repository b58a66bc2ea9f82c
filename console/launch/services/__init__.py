"""The local Kafka and Cassandra: JVM daemons for a machine without Docker. Knows no topic and no table."""
