"""Rollout workers: they respond to action requests with tokens, log-probabilities and the weight version of each token.

``main`` wires the process; ``request_server`` replies to requests; ``engine`` is the interface of ``vllm_engine`` and
``scripted``; ``weight_updater`` switches weights. torch and vllm are imported only by what ``vllm_engine`` imports.
"""
