"""The tiny policy before its first version: built, and warmed up on demonstrations. Used by ``dart-streams policy``.

The rest of the trainer does not import it.
"""
