"""Compares served weights with published ones by digest, and counts the age of curated groups. Pure."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from console.runs.run_state import RunState
from topics.weights import WeightKind

Verdict = Literal["equal", "different", "without_digest", "unpublished"]


class ServedWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the versions that each worker announced, compared with the published ones.

    ``announced`` is the sum of four verdicts. All digests of ``equal`` versions were published, and some of
    ``different`` ones were not. Engines without weights announce none, and ``unpublished`` versions are not on
    ``weights``. ``equal_by_kind`` has the equal ones by kind of publication.
    """

    announced: int
    equal: int
    different: int
    without_digest: int
    unpublished: int
    equal_by_kind: dict[WeightKind, int]
    published_by_kind: dict[WeightKind, int]


def served_weights(state: RunState) -> ServedWeights:
    """Return the counts of a run's announcements."""
    verdicts = list(compare_digests(state))
    counts = Counter(verdict for _, verdict in verdicts)
    equal = Counter(state.versions[version].event.kind for version, verdict in verdicts if verdict == "equal")
    return ServedWeights(
        announced=len(verdicts),
        equal=counts["equal"],
        different=counts["different"],
        without_digest=counts["without_digest"],
        unpublished=counts["unpublished"],
        equal_by_kind=dict(sorted(equal.items())),
        published_by_kind=dict(sorted(Counter(known.event.kind for known in state.versions.values()).items())),
    )


def compare_digests(state: RunState) -> Iterator[tuple[int, Verdict]]:
    """Yield each version that each worker announced, and its verdict."""
    for version, worker_id in sorted(state.served):
        served, published = state.served_digests.get((version, worker_id)), state.published_digests.get(version)
        if not served:
            yield version, "without_digest"
        elif published is None:
            yield version, "unpublished"
        else:
            yield version, "equal" if served <= published else "different"


def curated_ages(state: RunState) -> list[tuple[int, int]]:
    """Return the curation time (epoch milliseconds) and the age in versions of each online member, newest last."""
    published = sorted((version.at_ms, number) for number, version in state.versions.items())
    times = [at_ms for at_ms, _ in published]
    newest = list(itertools.accumulate((number for _, number in published), max))
    return [
        (at_ms, max(0, newest[known - 1] - member.version_min))
        for group, at_ms in sorted(state.groups.values(), key=lambda known: known[1])
        if (known := bisect_right(times, at_ms))
        for member in group.members
        if member.version_min is not None and member.source == "online"
    ]
