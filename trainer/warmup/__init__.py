"""Build and warm-up of the tiny policy, used by ``dart-streams policy``; the rest of the trainer does not import it."""
