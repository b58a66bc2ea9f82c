"""Starting things: local Kafka and Cassandra, the supervisor, the phases of a supervised run, evaluation.

Nothing but the CLI imports it; a deployment with an orchestrator of its own needs none of it.
"""
