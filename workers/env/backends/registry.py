"""Selection of the configured backend: one of the core or of an installed package, as the project's plug-ins are.

A package registers a backend by an entry point of the group ``dart_streams.environments``, a function of the
:class:`~dart_streams.config.Config` that returns an :class:`~workers.env.environment.EnvironmentBackend`.
"""

from collections.abc import Callable

from dart_streams.config import Config
from dart_streams.config.backends import entry_point_text, find_backend
from dart_streams.config.entry_points import load_part
from dart_streams.errors import ConfigError
from workers.env.environment import EnvironmentBackend


def backend_of(config: Config) -> EnvironmentBackend:
    """Return the configured backend, not started, with the tools of ``env.mcp``.

    Raises ConfigError if there is none of this name, or a package cannot be loaded.
    """
    return with_tools(plain_backend_of(config), config) if config.env.mcp.servers else plain_backend_of(config)


def with_tools(backend: EnvironmentBackend, config: Config) -> EnvironmentBackend:
    """Return a backend that also has the tools of ``env.mcp``; raise UserError without what calls them."""
    try:
        return load_part("env.mcp")(backend, config)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.mcp: {error}: run `make mcp`") from error


def plain_backend_of(config: Config) -> EnvironmentBackend:
    """Return the configured backend; its own dependencies (a browser) are imported only for it."""
    match config.env.backend:
        case "simulated":
            from workers.env.backends.simulated import SimulatedBackend

            return SimulatedBackend(config)
        case "miniwob":
            from workers.env.backends.miniwob.backend import MiniwobBackend

            return MiniwobBackend(config)
    entry = find_backend(config.env.backend)
    try:
        backend: Callable[[Config], EnvironmentBackend] = entry.load()
    except (ImportError, AttributeError) as error:
        place = f"env.backend: {entry.name!r} of {entry_point_text(entry)}"
        raise ConfigError(f"{place} cannot be loaded: {error}") from error
    return backend(config)
