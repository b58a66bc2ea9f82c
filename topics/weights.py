"""weights: a new version of the policy, published by the trainer after its files are durable."""

import msgspec

from topics.topic import Topic
from topics.values import Count, Digest, Name, Prose, Version


class WeightVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Version ``version`` lies at ``uri`` (a directory of safetensors); ``sha256`` is of its weights file.

    Versions strictly increase. A version of a smaller ``epoch`` than the newest seen is from a fenced trainer and is
    ignored. ``groups_consumed`` counts all curated groups the trainer has taken so far.
    """

    model_id: Name
    version: Version
    uri: Prose
    sha256: Digest
    train_step: Version
    epoch: Version
    groups_consumed: Count


TOPIC = Topic(name="weights", event=WeightVersion, key="model_id", retention_ms=None)
