"""All weights of one version in host memory, advanced from version to version.

A delta version consists of a full one and every delta since; missing parts are applied to the held weights. Without
usable weights, or with a wrong digest, the full version is loaded first. An adapter version applies to a full one, its
base, which is kept beside the result.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dart_streams.policy import adapters, deltas, weights
from dart_streams.policy.shared_tensors import SharedTensors
from topics.weights import WeightPart, WeightVersion


class ResidentWeights:
    """The weights of the current version; remote files are copied into ``cache``.

    ``sha256`` is the digest of ``tensors``, empty without any. Not thread-safe. Without ``lasting`` the tensors may map
    the file, which must then not change. With ``shared`` all are in shared memory.
    """

    def __init__(self, cache: Path, *, lasting: bool = True, shared: SharedTensors | None = None) -> None:
        self.cache = cache
        self.lasting = lasting
        self.shared = shared
        self.tensors: dict[str, Tensor] = {}
        self.sha256 = ""
        self.base: dict[str, Tensor] = {}
        self.base_sha256 = ""
        """Base of the held adapter, and its digest; empty without one."""
        self.folder = Path()
        """Local directory of the newest part, with the probe."""

    def forget(self) -> None:
        """Drop the weights; the next version starts from its full part."""
        self.tensors, self.sha256 = {}, ""
        self.base, self.base_sha256 = {}, ""

    def advance(self, version: WeightVersion, fetch: Callable[[WeightPart], Path] | None = None) -> None:
        """Advance to ``version`` with as few parts as possible; ``fetch`` returns the verified directory of a part.

        Raises :class:`~dart_streams.policy.weights.MissingWeights`, :class:`~dart_streams.policy.weights.WrongDigest`
        or OSError; then the weights are the previous ones or empty.
        """
        get = fetch or (lambda part: weights.fetch(part, self.cache))
        parts = version.parts
        own = self.sha256 if self.sha256 in [part.sha256 for part in parts] else self.base_sha256
        held = next((place for place, part in enumerate(parts) if part.sha256 == own), -1) if own else -1
        missing = [(part, get(part)) for part in parts[held + 1 :]]
        if held >= 0 and own != self.sha256:
            self.tensors, self.sha256 = self.base, own
        try:
            self._apply(missing)
        except weights.WrongDigest:
            if held < 0:
                raise
            self._apply([(part, get(part)) for part in parts])

    def _apply(self, parts: Sequence[tuple[WeightPart, Path]]) -> None:
        """Apply parts in order, then verify the whole; on a wrong digest raise WrongDigest and drop the weights."""
        for part, folder in parts:
            self._apply_one(part, folder / weights.FILES[part.kind])
            self.folder = folder
        if not parts or parts[-1][0].kind == "full":
            return  # its file was verified when it was fetched
        digest, newest = weights.digest_tensors(self.tensors), parts[-1][0]
        if digest != newest.sha256:
            self.forget()
            raise weights.WrongDigest(
                f"version {newest.version}: with the {newest.kind} at {newest.uri} all weights have sha256 {digest}, "
                f"published {newest.sha256}"
            )

    def _apply_one(self, part: WeightPart, file: Path) -> None:
        try:
            if part.kind == "adapter":
                base, digest = self.tensors, self.sha256
                merged = adapters.apply(base, file)
                if self.shared is not None:
                    changed = {name: value for name, value in merged.items() if value is not base[name]}
                    merged |= self.shared.copy(changed)
                self.tensors = merged
                self.base, self.base_sha256, self.sha256 = base, digest, part.sha256
                return
            self.base, self.base_sha256 = {}, ""
            tensors = load_file(file)
            if part.kind == "full":
                self.tensors = self._kept(tensors)
            else:
                deltas.apply(self.tensors, tensors)
        except (SafetensorError, deltas.TornDelta, adapters.TornAdapter) as error:
            self.forget()
            raise weights.WrongDigest(f"version {part.version} ({part.kind}) at {part.uri}: {error}") from None
        self.sha256 = part.sha256

    def _kept(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a file's tensors where they can stay, copied if needed."""
        if self.shared is not None:
            return self.shared.copy(tensors)
        return {name: value.clone() for name, value in tensors.items()} if self.lasting else tensors


def materialize_weights(version: WeightVersion, cache: Path) -> Path:
    """Return a local directory with all weights of ``version`` in one verified file.

    A full version on a local disk is used in place; others are copied or built once in ``cache``. Raises as
    :meth:`ResidentWeights.advance` does.
    """
    if version.kind == "full":
        return weights.fetch(version.parts[-1], cache)
    target = cache / f"whole-{version.sha256[:16]}"
    if not weights.is_cached(target / weights.FILE, version.sha256):
        resident = ResidentWeights(cache)
        resident.advance(version)
        probe = resident.folder / weights.PROBE
        weights.save(resident.tensors, str(target), {weights.PROBE: probe.read_bytes()} if probe.is_file() else {})
    return target
