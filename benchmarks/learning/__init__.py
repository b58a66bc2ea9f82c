"""Learning of a deployment and its variants: ``dart-streams bench learning``.

One process plays recorded screens with the real reducers, objective and warm-up; no browser, broker, store or engine.
Only ``network``, ``circle``, ``evaluate``, ``policy`` and ``play`` use torch.
"""
