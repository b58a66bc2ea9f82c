"""The model, its optimiser and one update on every rank. Pure of Kafka and Cassandra."""
