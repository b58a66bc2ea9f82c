"""What every process shares: configuration, tasks, actions, prompts, the bus, the store, curation, telemetry.

Imports topics; never workers or trainer; never torch, but in policy/.
"""
