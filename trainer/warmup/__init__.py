"""The tiny policy before its first version: built, and warmed up on demonstrations. Used by ``dart-streams policy``.

No other part of the trainer knows it.
"""
