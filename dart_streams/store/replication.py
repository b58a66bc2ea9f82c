"""Replication of the keyspace: chosen when ``store apply`` makes it, and checked by each process that opens it."""

from collections.abc import Mapping

from cassandra.metadata import NetworkTopologyStrategy

from dart_streams.config import Store
from dart_streams.errors import ConfigError

COPIES = 1
"""Copies of each row in a new keyspace without ``store.replication``."""


def local_datacenter(store: Store, nodes: Mapping[str, int]) -> str:
    """Return the datacenter of the deployment, given the number of nodes of each.

    Raises :class:`ConfigError` if ``store.local_dc`` names none of them, or is needed because there are several.
    """
    names = ", ".join(sorted(nodes))
    if store.local_dc and store.local_dc not in nodes:
        raise ConfigError(f"store.local_dc is {store.local_dc!r}, and the nodes are in {names}: name one of these")
    if not store.local_dc and len(nodes) != 1:
        raise ConfigError(f"the nodes are in several datacenters ({names}): name this deployment's in store.local_dc")
    return store.local_dc or next(iter(nodes))


def replication_map(datacenter: str, copies: int) -> str:
    """Return the CQL value of a keyspace's ``replication``."""
    quoted = datacenter.replace("'", "''")
    return f"{{'class': 'NetworkTopologyStrategy', '{quoted}': {copies}}}"


def new_replication(store: Store, nodes: Mapping[str, int]) -> str:
    """Return the CQL value for a new keyspace.

    Raises :class:`ConfigError` if the datacenter has fewer nodes than copies, as no quorum would then answer.
    """
    datacenter = local_datacenter(store, nodes)
    copies = store.replication or COPIES
    if copies > nodes[datacenter]:
        raise ConfigError(
            f"store.replication is {copies}, and datacenter {datacenter} has {nodes[datacenter]} of as many nodes: "
            "start the others first, or declare fewer copies"
        )
    return replication_map(datacenter, copies)


def refuse_other(store: Store, nodes: Mapping[str, int], strategy: object) -> None:
    """Raise :class:`ConfigError` if the keyspace has another replication than ``store.replication`` declares.

    ``strategy`` is the driver's description of the keyspace's replication. 0 accepts any.
    """
    if not store.replication:
        return
    datacenter = local_datacenter(store, nodes)
    copies = strategy.dc_replication_factors.get(datacenter) if isinstance(strategy, NetworkTopologyStrategy) else None
    if copies == store.replication:
        return
    actual = strategy.export_for_schema() if hasattr(strategy, "export_for_schema") else "unknown"
    raise ConfigError(
        f"keyspace {store.keyspace} has the replication {actual}, and store.replication declares {store.replication} "
        f"copies in {datacenter}. Have its operator run `ALTER KEYSPACE {store.keyspace} WITH replication = "
        f"{replication_map(datacenter, store.replication)}`, then `nodetool repair -full {store.keyspace}` on each "
        "node; or declare what it has"
    )
