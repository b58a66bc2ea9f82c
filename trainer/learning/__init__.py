"""The model, its optimizer and one update on every rank. Pure of Kafka and Cassandra; tensors have shape suffixes.

B sequences, A answer tokens, L tokens of prompt and answer, V vocabulary, N patches, I images, C pixels, D hidden.
"""
