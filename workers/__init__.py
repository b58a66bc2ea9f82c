"""The processes of the circle, one package a kind: env, rollout, recorder and curator.

``runtime`` is shared. They exchange events on topics and never import each other.
"""
