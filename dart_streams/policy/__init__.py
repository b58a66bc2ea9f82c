"""The policy as trainer and rollout worker share it: prompts to tokens, weights in and out, the tiny demo policy.

May import torch and transformers; consumes no Kafka topic and trains nothing.
"""
