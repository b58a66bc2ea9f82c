"""The files of weight versions: all weights, what changed since the version before, or an adapter of frozen ones."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from torch import Tensor

from dart_streams.config.trainer import Publish
from dart_streams.policy import adapters, deltas
from dart_streams.policy import weights as weight_files
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.probe import Probe
from topics.weights import WeightPart, WeightVersion

BASE = "-base"
"""What the directory of a version's base is named after its own, where the base is not a version itself."""


class WrittenVersion(NamedTuple):
    """The files of a version are durable: its ``own`` part, what it is applied to, and the size of the tensors.

    ``changed_share`` is the share of values that are others than in the version before, None where that was not asked.
    """

    own: WeightPart
    base: list[WeightPart]
    size_bytes: int
    changed_share: float | None

    def metrics(self) -> dict[str, float]:
        """Return what of it belongs to the metrics of its step."""
        share = {} if self.changed_share is None else {"weights_changed_share": self.changed_share}
        return {"publish_bytes": float(self.size_bytes), **share}


class VersionWriter:
    """Writes one version after another. Where deltas are wanted, it keeps the newest version's tensors for the next.

    Of adapters it keeps the newest, and where their base lies.
    """

    def __init__(self, settings: Publish) -> None:
        self.full_every = settings.full_every
        self.tensors: Mapping[str, Tensor] = {}
        self.parts: list[WeightPart] = []
        self.adapter: Adapter | None = None
        self.base: WeightPart | None = None

    def adopt_base(self, newest: WeightVersion, adapter: Adapter) -> None:
        """Go on with the base of the ``newest`` version, if that is the adapter's."""
        full = newest.parts[0]
        if full.sha256 == weight_files.digest_tensors(adapter.base):
            self.base = full

    def resume(
        self, newest: WeightVersion, tensors: Mapping[str, Tensor], adapter: Adapter | None = None
    ) -> WeightVersion:
        """Go on after a version that was published with these ``tensors``, and return it.

        It is now a full one, unless it is an ``adapter`` of the same base.
        """
        tensors = weight_files.distinct_tensors(tensors)
        self.adapter = adapter
        if adapter is not None and self.base is not None and newest.kind in ("adapter", "full"):
            return newest
        if newest.kind != "full":
            return self.write_whole(newest, tensors)
        self._keep(tensors, newest.parts)
        return newest

    def write(
        self,
        uri: str,
        version: int,
        tensors: Mapping[str, Tensor],
        probe: Probe,
        adapter: Adapter | None = None,
        *,
        whole: bool = False,
    ) -> WrittenVersion:
        """Write the files of ``version`` to the directory ``uri``: all weights if ``whole`` or a full one is due.

        Otherwise the ``adapter`` that they are made of, or a delta.
        """
        beside = {weight_files.PROBE: msgspec.json.encode(probe)}
        tensors = weight_files.distinct_tensors(tensors)
        if adapter is not None:
            return self._write_adapter(uri, version, tensors, beside, adapter, whole)
        size = size_of(tensors)
        delta = self._delta(tensors)
        share = delta.changed / max(1, delta.elements) if delta else None
        if delta is None or whole or len(self.parts) >= self.full_every or size_of(delta.tensors) >= size:
            sha256 = weight_files.save(tensors, uri, beside)
            base, own = [], WeightPart(version=version, uri=uri, sha256=sha256)
        else:
            size = size_of(delta.tensors)
            file_sha256 = weight_files.save(delta.tensors, uri, beside, "delta")
            base, sha256 = self.parts, weight_files.digest_tensors(tensors)
            own = WeightPart(version=version, uri=uri, sha256=sha256, kind="delta", file_sha256=file_sha256)
        self._keep(tensors, [*base, own])
        return WrittenVersion(own, base, size, share)

    def _write_adapter(
        self,
        uri: str,
        version: int,
        tensors: Mapping[str, Tensor],
        beside: Mapping[str, bytes],
        adapter: Adapter,
        whole: bool,
    ) -> WrittenVersion:
        """Write an adapter, and its base where there is none yet; whole weights that are the base become the base.

        Whoever asked for whole weights may have found the base damaged, so it is written again for the next version.
        """
        self.adapter = adapter
        sha256 = weight_files.digest_tensors(tensors)
        is_base = self.base is None and sha256 == weight_files.digest_tensors(adapter.base)
        if whole or is_base:
            own = WeightPart(version=version, uri=uri, sha256=weight_files.save(tensors, uri, beside))
            self.base = own if is_base else None
            return WrittenVersion(own, [], size_of(tensors), None)
        if self.base is None:
            place = uri + BASE
            # Frozen weights are those of version 0, under whatever number they are written.
            self.base = WeightPart(version=0, uri=place, sha256=weight_files.save(adapter.base, place))
        files = {**beside, weight_files.ADAPTER_CONFIG: adapter.config}
        file_sha256 = weight_files.save(adapter.tensors, uri, files, "adapter", adapter.metadata)
        own = WeightPart(version=version, uri=uri, sha256=sha256, kind="adapter", file_sha256=file_sha256)
        return WrittenVersion(own, [self.base], size_of(adapter.tensors), None)

    def newest_tensors(self) -> Mapping[str, Tensor]:
        """Return all weights of the newest version, empty if nothing is kept of them."""
        if self.adapter is None:
            return self.tensors
        return adapters.with_adapter(self.adapter.base, self.adapter.tensors, self.adapter.scaling)

    def write_whole(self, newest: WeightVersion, tensors: Mapping[str, Tensor]) -> WeightVersion:
        """Write all ``tensors`` of the newest version beside its delta, and return it as a full one."""
        sha256 = weight_files.save(tensors, newest.uri)
        full = msgspec.structs.replace(newest, sha256=sha256, kind="full", file_sha256="", base=[])
        self._keep(tensors, full.parts)
        self.base = None
        return full

    def _delta(self, tensors: Mapping[str, Tensor]) -> deltas.Delta | None:
        """Return what changed since the version before; None without one that can be compared."""
        if not self.tensors:
            return None
        try:
            return deltas.diff_weights(self.tensors, tensors)
        except deltas.Unrelated:
            return None

    def _keep(self, tensors: Mapping[str, Tensor], parts: list[WeightPart]) -> None:
        if self.full_every > 1:
            self.tensors, self.parts = tensors, parts


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors.values())
