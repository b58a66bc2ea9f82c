"""Whether rollout workers served the weights that the trainer published, by digest. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from dart_streams.console.runs.run_state import RunState
from topics.weights import WeightKind

Verdict = Literal["equal", "different", "without_digest", "unpublished"]


class ServedWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that workers announced on ``weights-serving``, each worker's once, against those on ``weights``.

    ``announced`` is the sum of the four verdicts: of ``equal`` ones every digest that the worker announced is one that
    the trainer did, of ``different`` ones some is not; engines without weights give none; of ``unpublished`` ones
    ``weights`` has no version. ``equal_by_kind`` has the equal ones by what was published.
    """

    announced: int
    equal: int
    different: int
    without_digest: int
    unpublished: int
    equal_by_kind: dict[WeightKind, int]
    published_by_kind: dict[WeightKind, int]


def served_weights(state: RunState) -> ServedWeights:
    """Return what became of every announcement."""
    found = list(compare_digests(state))
    counts = Counter(verdict for _, verdict in found)
    equal = Counter(state.versions[version].event.kind for version, verdict in found if verdict == "equal")
    return ServedWeights(
        announced=len(found),
        equal=counts["equal"],
        different=counts["different"],
        without_digest=counts["without_digest"],
        unpublished=counts["unpublished"],
        equal_by_kind=dict(sorted(equal.items())),
        published_by_kind=dict(sorted(Counter(known.event.kind for known in state.versions.values()).items())),
    )


def compare_digests(state: RunState) -> Iterator[tuple[int, Verdict]]:
    """Yield each version that each worker announced, and how its digests compare."""
    for version, worker_id in sorted(state.served):
        served, published = state.served_digests.get((version, worker_id)), state.published_digests.get(version)
        if not served:
            yield version, "without_digest"
        elif published is None:
            yield version, "unpublished"
        else:
            yield version, "equal" if served <= published else "different"
