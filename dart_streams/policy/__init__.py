"""The policy as both of its hosts see it: prompts to tokens, weights in and out, and the tiny demo policy.

Used by the rollout worker and the trainer, so that what was generated and what is trained are the same by construction.
May import torch and transformers; no consumer of Kafka and no training here.
"""
