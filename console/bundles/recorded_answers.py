"""A run's action requests with their recorded answers, by the version that answered, and the comparison. Pure.

Tokens that were drawn at a temperature cannot be drawn again. Their log-probabilities under the same weights can be
computed again, and only the answers of a temperature of 0 are generated anew.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from console.bundles.republish import TimeSpan
from console.runs.bundle import Bundle
from console.runs.run_log import full_event, read_events
from dart_streams.bus.codec import Undecodable
from topics import Topic, action_requests, actions, weights
from topics.action_requests import ActionRequest, ReplayedRequest
from topics.actions import ActionResponse
from topics.values import VersionSpan
from topics.weights import WeightVersion

READ: tuple[Topic, ...] = (action_requests.TOPIC, actions.TOPIC, weights.TOPIC)
TOLERANCE_NATS = 1e-3
"""Largest difference of a token's log-probability: float32 sums depend on what else is in a batch."""


class Part(NamedTuple):
    """A request with its answer, of which the tokens of ``span`` are of one version; ``at_ms`` orders a run's."""

    at_ms: int
    request: ActionRequest
    answer: ActionResponse
    before: list[list[int]]
    span: VersionSpan

    @property
    def generated(self) -> bool:
        """Whether the same tokens are expected: the likeliest ones, all of one version."""
        return self.request.sampling.temperature == 0 and len(self.answer.versions) == 1

    def asked(self, before: Sequence[list[int]]) -> ActionRequest:
        """Return the request to replay, with the tokens of earlier answers."""
        tokens = [] if self.generated else self.answer.tokens
        brought = ReplayedRequest(request_id=self.request.request_id, before=[*before], tokens=tokens)
        return msgspec.structs.replace(self.request, recorded=brought)


class RecordedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The number of requests, their comparable parts by version, and counts of what is left out, by reason."""

    requests: int
    parts: dict[int, list[Part]]
    left_out: dict[str, int]


class AnswerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of a replayed answer: where, what (``token`` is the place in the answer), and both sides."""

    request_id: str
    trajectory_id: str
    step: int
    version: int
    what: str
    recorded: Any
    replayed: Any
    token: int | None = None


class VersionComparison(msgspec.Struct, kw_only=True):
    """Counts of a version's answers, ``generated`` anew or scored; ``difference`` is the first by its request's time.

    ``max_nats`` is the largest difference of a log-probability of the scored tokens.
    """

    version: int
    answers: int = 0
    generated: int = 0
    tokens: int = 0
    different: int = 0
    max_nats: float = 0.0
    difference: AnswerDifference | None = None
    differs_at_ms: int = 0

    def add(self, part: Part, reply: ActionResponse) -> None:
        """Compare a reply with the recorded answer, and count it."""
        self.answers += 1
        self.tokens += part.span.end - part.span.start
        found = difference_of(part, reply)
        if part.generated:
            self.generated += 1
        elif found is None or found.what == "log-probability":
            self.max_nats = max(self.max_nats, *nats_between(part, reply))
        if found is not None:
            self.different += 1
            if self.difference is None or part.at_ms < self.differs_at_ms:
                self.difference, self.differs_at_ms = found, part.at_ms


class AnswerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay of requests; ``difference`` is the first by the time of its request.

    ``left_out`` counts requests, or parts of answers of two versions, by the reason why they were not compared.
    """

    equal: bool
    requests: int
    versions: list[VersionComparison]
    left_out: dict[str, int]
    tolerance_nats: float = TOLERANCE_NATS
    difference: AnswerDifference | None = None


def read_answers(bundle: Bundle, span: TimeSpan) -> RecordedAnswers:
    """Return the requests of a bundle within ``span`` with their first answers.

    Raises :class:`~console.runs.bundle.BundleError` if the bundle has no such topics.
    """
    for topic in READ:
        bundle.records(topic.name)  # Refuses a bundle without it.
    answers: dict[str, ActionResponse] = {}
    for answer in read_events(bundle, [actions.TOPIC]):
        if not answer.alive and not answer.gives_back:
            answers.setdefault(answer.request_id, answer)
    earlier: defaultdict[str, list[ActionResponse]] = defaultdict(list)
    for answer in answers.values():
        if answer.tokens:
            earlier[answer.trajectory_id].append(answer)
    requests: dict[str, tuple[int, ActionRequest]] = {}
    for record in filter(span.has, bundle.records(action_requests.TOPIC.name)):
        with contextlib.suppress(Undecodable):  # It became a dead letter.
            request: ActionRequest = full_event(action_requests.TOPIC.name, record)
            requests.setdefault(request.request_id, (record.at_ms, request))
    parts: defaultdict[int, list[Part]] = defaultdict(list)
    left_out = Counter[str]()
    for at_ms, request in requests.values():
        recorded = answers.get(request.request_id)
        if recorded is None or recorded.error is not None or not recorded.tokens:
            left_out[why_left_out(recorded)] += 1
            continue
        before = [other.tokens for other in earlier[request.trajectory_id] if other.step < request.step]
        for served in recorded.versions:
            parts[served.version].append(Part(at_ms, request, recorded, before, served))
    return RecordedAnswers(requests=len(requests), parts=dict(sorted(parts.items())), left_out=left_out)


def published_versions(bundle: Bundle) -> dict[int, WeightVersion]:
    """Return the versions on ``weights`` by number, as last announced; without those that stand for two files."""
    found: dict[int, WeightVersion] = {}
    digests: defaultdict[int, set[str]] = defaultdict(set)
    for event in read_events(bundle, [weights.TOPIC]):
        found[event.version] = event
        digests[event.version].add(event.sha256)
    return {version: event for version, event in found.items() if len(digests[version]) == 1}


def why_left_out(answer: ActionResponse | None) -> str:
    """Return why a request's answer cannot be compared."""
    if answer is None:
        return "no answer: past its deadline, or under way at the capture"
    return "answered with an error" if answer.error is not None else "an answer without tokens"


def difference_of(part: Part, reply: ActionResponse) -> AnswerDifference | None:
    """Return the first difference of a replayed answer, None for an equal one."""
    answer = part.answer

    def differs(what: str, recorded: Any, replayed: Any, token: int | None = None) -> AnswerDifference:
        return AnswerDifference(
            request_id=part.request.request_id,
            trajectory_id=part.request.trajectory_id,
            step=part.request.step,
            version=part.span.version,
            what=what,
            recorded=recorded,
            replayed=replayed,
            token=token,
        )

    served = sorted({span.version for span in reply.versions})
    if reply.error is not None:
        return differs("error", None, reply.error)
    if reply.prompt_sha != answer.prompt_sha:
        return differs("prompt", answer.prompt_sha, reply.prompt_sha)
    if served != [part.span.version]:
        return differs("version", [part.span.version], served)
    if part.generated and reply.tokens != answer.tokens:
        pairs = enumerate(zip_longest(answer.tokens, reply.tokens))
        place = next(place for place, (recorded, replayed) in pairs if recorded != replayed)
        return differs("tokens", answer.tokens, reply.tokens, place)
    for place, nats in enumerate(nats_between(part, reply), part.span.start):
        if not nats <= TOLERANCE_NATS:
            return differs("log-probability", answer.logprobs[place], reply.logprobs[place], place)
    return None


def nats_between(part: Part, reply: ActionResponse) -> list[float]:
    """Return the absolute difference of each log-probability of a part (nats)."""
    span = slice(part.span.start, part.span.end)
    return [abs(one - other) for one, other in zip(part.answer.logprobs[span], reply.logprobs[span], strict=True)]
