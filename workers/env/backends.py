"""The environment backends. A backend's own dependencies (a browser) are imported only where it is configured."""

from dart_streams.config import Config
from workers.env.environment import EnvironmentBackend


def backend_of(config: Config) -> EnvironmentBackend:
    """Return the configured backend, not yet started."""
    if config.env.backend == "simulated":
        from workers.env.simulated import SimulatedBackend

        return SimulatedBackend(config)
    from workers.env.miniwob.backend import MiniwobBackend

    return MiniwobBackend(config)
