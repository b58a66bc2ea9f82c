"""The processes of the circle, one package a kind: env, rollout, recorder, curator, tracker, desktop_server.

``runtime`` is shared. They exchange events on topics and never import each other.
"""
