"""Settings of Entropulse (ComputerRL, arXiv 2508.14040)."""

from dart_streams.config.section import Optional, Positive


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.computerrl]``."""

    every: Positive = 12
    """Optimizer steps between supervised phases, each at the end of its step."""
    updates: Positive = 4
    """Updates of a phase, within its step and weight version."""
    trajectories: Positive = 32
    """Trajectories of an update."""
