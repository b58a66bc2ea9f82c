"""The processes of the circle, one package a kind: env, rollout, recorder, curator, monitor; ``runtime`` is shared.

They exchange events on topics and never import each other. Each ``main`` lists what it consumes and produces.
"""
