"""The files of weight versions: all weights, or what changed since the version before."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from torch import Tensor

from dart_streams.config.trainer import Publish
from dart_streams.policy import deltas
from dart_streams.policy import weights as weight_files
from dart_streams.policy.probe import Probe
from topics.weights import WeightPart, WeightVersion


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
    """Writes one version after another. Where deltas are wanted, it keeps the newest version's tensors for the next."""

    def __init__(self, settings: Publish) -> None:
        self.full_every = settings.full_every
        self.tensors: Mapping[str, Tensor] = {}
        self.parts: list[WeightPart] = []

    def resume(self, newest: WeightVersion, tensors: Mapping[str, Tensor]) -> WeightVersion:
        """Go on after a version that was published with these ``tensors``, and return it, now a full one."""
        tensors = weight_files.distinct(tensors)
        if newest.kind != "full":
            return self.write_whole(newest, tensors)
        self._keep(tensors, newest.parts)
        return newest

    def write(
        self, uri: str, version: int, tensors: Mapping[str, Tensor], probe: Probe, *, whole: bool = False
    ) -> WrittenVersion:
        """Write the files of ``version`` to the directory ``uri``: a delta, unless ``whole`` or a full one is due."""
        beside = {weight_files.PROBE: msgspec.json.encode(probe)}
        tensors = weight_files.distinct(tensors)
        size = size_of(tensors)
        delta = self._delta(tensors)
        share = delta.changed / max(1, delta.elements) if delta else None
        if delta is None or whole or len(self.parts) >= self.full_every or size_of(delta.tensors) >= size:
            sha256 = weight_files.save(tensors, uri, beside)
            base, own = [], WeightPart(version=version, uri=uri, sha256=sha256)
        else:
            size = size_of(delta.tensors)
            file_sha256 = weight_files.save(delta.tensors, uri, beside, "delta")
            base, sha256 = self.parts, weight_files.digest_of(tensors)
            own = WeightPart(version=version, uri=uri, sha256=sha256, kind="delta", file_sha256=file_sha256)
        self._keep(tensors, [*base, own])
        return WrittenVersion(own, base, size, share)

    def write_whole(self, newest: WeightVersion, tensors: Mapping[str, Tensor]) -> WeightVersion:
        """Write all ``tensors`` of the newest version beside its delta, and return it as a full one."""
        sha256 = weight_files.save(tensors, newest.uri)
        full = msgspec.structs.replace(newest, sha256=sha256, kind="full", file_sha256="", base=[])
        self._keep(tensors, full.parts)
        return full

    def _delta(self, tensors: Mapping[str, Tensor]) -> deltas.Delta | None:
        """Return what changed since the version before; None without one that can be compared."""
        if not self.tensors:
            return None
        try:
            return deltas.between(self.tensors, tensors)
        except deltas.Unrelated:
            return None

    def _keep(self, tensors: Mapping[str, Tensor], parts: list[WeightPart]) -> None:
        if self.full_every > 1:
            self.tensors, self.parts = tensors, parts


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors.values())
