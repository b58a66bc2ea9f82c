"""Learning of a deployment and its variants: ``dart-streams bench learning``.

One process plays recorded screens with the real reducers, objective and warm-up; no browser, broker, store or engine.
Only ``network``, ``circle``, ``policy`` and ``play`` use torch.
"""
