"""Tokens computed by several-step trajectories: ``dart-streams bench multi-turn``.

``trajectories`` makes the recorded trajectories and names the windows; ``rollout`` and ``trainer`` read them.
"""
