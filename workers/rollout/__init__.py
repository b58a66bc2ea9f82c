"""Rollout workers: they answer action requests with tokens, log-probabilities and the weight version of each token.

``main`` wires the process; ``desk`` takes requests and replies; ``engine`` is the protocol behind which ``vllm`` and
``scripted`` live; ``roll`` and ``versions`` decide, as pure functions, when to switch to which weights. Only
``vllm_engine`` may import torch or vllm.
"""
