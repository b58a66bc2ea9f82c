"""A supervised run: its folder, its processes and phases, the live display, evaluation and the report.

What is known of a run's progress is folded from its topics alone. Nothing here is imported by a worker but the folds.
"""
