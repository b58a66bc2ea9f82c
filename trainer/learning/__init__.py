"""Model, optimizer and update of every rank, without Kafka and Cassandra. Tensors have shape suffixes.

B sequences, A answer tokens, L tokens of prompt and answer, V vocabulary, N patches, I images, C pixels, D hidden.
"""
