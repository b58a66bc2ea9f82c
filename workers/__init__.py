"""The processes of the circle, one folder a kind: env, rollout, recorder, curator, monitor."""
