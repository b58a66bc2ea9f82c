"""How much a deployment learns, and what each of its rules contributes: ``dart-streams bench learning``.

The demonstration in one process and on recorded screens: the real reducers, trainer objective and warm-up; no browser,
broker, store or engine. What needs torch is in ``network``, ``circle``, ``evaluate`` and ``play``; the rest does not.
"""
