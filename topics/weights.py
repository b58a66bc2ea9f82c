"""weights: a new version of the policy, published by the trainer after its files are durable."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topics.topic import Topic
from topics.values import Count, Digest, Name, Prose, Version

WeightKind = Literal["full", "delta", "adapter"]
"""What a version's file holds: all weights, what changed since the version before, or a LoRA adapter of its base."""
MOST_PARTS = 1024


class WeightPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file that weights are made of: the directory ``uri`` holds it, ``file_sha256`` is of it.

    ``sha256`` is of all weights once it is applied. A ``full`` part is all of them, and its two digests are the same.
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
    """Version ``version`` lies at ``uri`` (a directory of safetensors); ``sha256`` is of its weights file.

    Versions strictly increase. A version of a smaller ``epoch`` than the newest seen is from a fenced trainer and is
    ignored. ``groups_consumed`` counts all curated groups the trainer has taken so far.

    Of another ``kind`` than ``full``, the file at ``uri``, whose SHA-256 is ``file_sha256``, is applied to what
    ``base`` makes: a full part and what follows it, in order. Whatever the kind, ``sha256`` is of the weights file that
    the whole version is, or would be.
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
        """What the weights are made of, in the order in which it is applied; the last is the version's own file."""
        own = WeightPart(
            version=self.version, uri=self.uri, sha256=self.sha256, kind=self.kind, file_sha256=self.file_sha256
        )
        return [*self.base, own]

    def full_before(self) -> "WeightVersion | None":
        """Return the full version that this one is made from, as it was published; None if this one is full."""
        if not self.base:
            return None
        full = self.base[0]
        return msgspec.structs.replace(
            self, version=full.version, uri=full.uri, sha256=full.sha256, kind="full", file_sha256="", base=[]
        )


TOPIC = Topic(name="weights", event=WeightVersion, key="model_id", retention_ms=None)
