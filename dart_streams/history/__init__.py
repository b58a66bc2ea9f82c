"""A run, from its log: the fold of its topics, bundles, replay and what-if, lineage, the store as a projection.

Reads topics, store, spans and metrics. Nothing here starts a process or draws anything; only ``republish``,
``dead_letters`` and ``projection`` write, and only when asked to.
"""
