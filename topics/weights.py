"""weights: new versions of the policy, published by the trainer after their files are durable."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topics.topic import Topic
from topics.values import Count, Digest, Name, Prose, Version

WeightKind = Literal["full", "delta", "adapter"]
"""Content of a version's file: all weights, the changes since the version before, or a LoRA adapter of its base."""
MOST_PARTS = 1024


class WeightPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of weights in the directory ``uri``, with its digest ``file_sha256``.

    ``sha256`` is the digest of all weights after its application. The two digests of a ``full`` part are the same.
    """

    version: Version
    uri: Prose
    sha256: Digest
    kind: WeightKind = "full"
    file_sha256: Digest = ""

    @property
    def digest_of_file(self) -> str:
        """The SHA-256 (hex) of the file at ``uri``."""
        return self.file_sha256 or self.sha256


class WeightVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Version ``version`` at ``uri`` (a directory of safetensors); ``sha256`` is the digest of its weights file.

    Versions strictly increase. A version of a smaller ``epoch`` than the newest seen is from a fenced trainer and is
    ignored. ``groups_consumed`` counts all curated groups that the trainer has consumed.

    For another ``kind`` than ``full``, the file at ``uri`` with the SHA-256 ``file_sha256`` is applied to ``base``: a
    full part and its successors in order. For any kind, ``sha256`` is the digest of the whole version as one file.
    """

    model_id: Name
    version: Version
    uri: Prose
    sha256: Digest
    train_step: Version
    epoch: Version
    groups_consumed: Count
    kind: WeightKind = "full"
    file_sha256: Digest = ""
    base: Annotated[list[WeightPart], Meta(max_length=MOST_PARTS)] = []

    @property
    def parts(self) -> list[WeightPart]:
        """The files of the weights in the order of their application; the last is the version's own file."""
        own = WeightPart(
            version=self.version, uri=self.uri, sha256=self.sha256, kind=self.kind, file_sha256=self.file_sha256
        )
        return [*self.base, own]

    def full_before(self) -> "WeightVersion | None":
        """Return the published full version that this one is based on; None if this one is full."""
        if not self.base:
            return None
        full = self.base[0]
        return msgspec.structs.replace(
            self, version=full.version, uri=full.uri, sha256=full.sha256, kind="full", file_sha256="", base=[]
        )


TOPIC = Topic(name="weights", event=WeightVersion, key="model_id", shortest_ms=None)
