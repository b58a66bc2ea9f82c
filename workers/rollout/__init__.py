"""Rollout workers: reply to action requests with tokens, log-probabilities and each token's weight version.

``main`` wires the process, ``request_server`` replies, ``engine`` is the interface of the engines, ``weight_updater``
switches weights. Only modules that ``vllm_engine`` imports use torch and vllm.
"""
