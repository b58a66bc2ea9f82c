"""Training samples: one selected step of a curated group is one sequence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from dart_streams.actions.sequence import parse_written, pointer_after
from dart_streams.config import Policy
from dart_streams.episodes import prompts
from topics.curated import CuratedGroup, Member
from topics.observations import ExecutedAction, Observation
from topics.values import BlobRef, VersionSpan

if TYPE_CHECKING:  # torch
    from dart_streams.policy.rendering import Renderer

MISSING_STEP = "missing_step"
MISSING_BLOB = "missing_blob"
PROMPT_MISMATCH = "prompt_mismatch"
BROKEN_RECORD = "broken_record"
NO_TOKENS = "no_tokens"
CUT_DISTRIBUTION = "cut_distribution"
UNUSABLE_IMAGE = "unusable_image"
REASONS = (MISSING_STEP, MISSING_BLOB, PROMPT_MISMATCH, BROKEN_RECORD, NO_TOKENS, CUT_DISTRIBUTION, UNUSABLE_IMAGE)


class TrainingSample(msgspec.Struct, frozen=True, kw_only=True):
    """One step to train on; ``step`` counts actions from 0. Prompts of a trajectory's ``window`` extend each other.

    ``answer`` are the rollout's tokens. ``logprobs`` (nats, one a token) are the engine's; None for demonstrations and
    pool steps of weight 1. ``scores`` (one a token) are those of the rule ``score``; None without any.
    """

    prompt: list[int]
    answer: list[int]
    images: list[BlobRef] = []
    logprobs: list[float] | None = None
    versions: list[VersionSpan] = []
    advantage: float = 0.0
    temperature: float = 1.0
    group_id: str = ""
    trajectory_id: str = ""
    step: int = 0
    window: prompts.Window = prompts.Window(0, 1)
    scores: list[float] | None = None


class ReadyGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's samples of a group, and the bytes of their screenshots by sha256."""

    group: CuratedGroup
    samples: list[TrainingSample]
    images: dict[str, bytes]
    refused: Counter[str]
    read_ms: float
    distinct_tokens: int = 0
    """Tokens of the samples if nothing were read twice (see :mod:`trainer.data.distinct`)."""

    @property
    def size(self) -> int:
        """Bytes of screenshots held."""
        return sum(map(len, self.images.values()))


class RejectedStep(Exception):
    """A step cannot be trained on; it is counted under ``reason``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Selection(msgspec.Struct, kw_only=True):
    """Samples of a group, refused steps by reason, and one example."""

    samples: list[TrainingSample] = []
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    example: str = ""

    def refuse(self, reason: str, detail: str, count: int = 1) -> None:
        """Count refused steps."""
        self.refused[reason] += count
        self.example = self.example or detail

    def refuse_screenshot(self, sha256: str, reason: str, detail: str) -> None:
        """Refuse the samples that show a screenshot."""
        usable = [item for item in self.samples if all(ref.sha256 != sha256 for ref in item.images)]
        self.refuse(reason, detail, len(self.samples) - len(usable))
        self.samples = usable


def select(
    group: CuratedGroup,
    members: Sequence[Member],
    steps: Mapping[str, Sequence[Observation]],
    renderer: "Renderer",
    policy: Policy,
) -> Selection:
    """Return the samples of ``members`` by step, then by trajectory, so that equal screens are neighbors."""
    selection = Selection()
    for member in members:
        observations = steps[member.trajectory_id]
        for number in range(len(member.selected)):
            try:
                selection.samples.append(sample(group.group_id, member, number, observations, renderer, policy))
            except RejectedStep as rejection:
                selection.refuse(rejection.reason, str(rejection))
    selection.samples.sort(key=lambda item: (item.step, item.trajectory_id))
    return selection


def sample(
    group_id: str,
    member: Member,
    number: int,
    observations: Sequence[Observation],
    renderer: "Renderer",
    policy: Policy,
) -> TrainingSample:
    """Return a member's selected step ``number`` as a sample; raise :class:`RejectedStep` if it cannot be one."""
    step = member.selected[number]
    place = f"step {step} of trajectory {member.trajectory_id}"
    if [observation.step for observation in observations[: step + 2]] != list(range(step + 2)):
        raise RejectedStep(
            MISSING_STEP, f"{place} is missing from the store, which has {len(observations)} of its observations"
        )
    taken = observations[step + 1].taken
    if taken is None:
        raise RejectedStep(BROKEN_RECORD, f"{place} has no action")
    if not taken.tokens and member.source == "online":
        raise RejectedStep(NO_TOKENS, f"{place} has an answer without tokens (rollout.openai)")
    sampling = observations[0].order.sampling
    if not sampling.is_whole and member.source == "online":
        raise RejectedStep(
            CUT_DISTRIBUTION,
            f"{place} was sampled at temperature {sampling.temperature:g} with top_p {sampling.top_p:g}: its "
            "log-probabilities do not cover the whole distribution",
        )
    prompt = renderer.recorded_prompt(observations[: step + 1], policy, taken.prompt_sha)
    if taken.tokens and taken.prompt_sha != prompt.sha:
        raise RejectedStep(
            PROMPT_MISMATCH,
            f"{place} was generated from prompt {taken.prompt_sha[:12]}, this trainer renders {prompt.sha[:12]}: "
            "check that rollout workers use the same model directory and policy settings",
        )
    correction = correction_of(member, number, observations[: step + 1], policy, place)
    return TrainingSample(
        group_id=group_id,
        trajectory_id=member.trajectory_id,
        step=step,
        window=prompts.window_after(step + 1, policy),
        prompt=prompt.token_ids,
        images=prompt.images,
        answer=(not correction and list(taken.tokens)) or renderer.answer_tokens(correction or taken.text),
        logprobs=None if correction or not sampling.is_whole else rollout_logprobs(member, taken, place),
        versions=[] if correction else taken.versions,
        advantage=advantage_of(member, number, place),
        temperature=sampling.temperature or 1.0,
    )


def correction_of(member: Member, number: int, before: Sequence[Observation], policy: Policy, place: str) -> str | None:
    """Return a person's answer to ``before`` in the policy's dialect; None where the policy's own answer counts."""
    if not member.corrections:
        return None
    if len(member.corrections) != len(member.selected):
        raise RejectedStep(
            BROKEN_RECORD, f"{place}: {len(member.corrections)} corrections for {len(member.selected)} selected steps"
        )
    view = prompts.view_of(before, policy)
    try:
        action = parse_written(member.corrections[number])
        x, y = pointer_after(action) or (0, 0)
        if not (x < view.width and y < view.height):
            raise ValueError(f"({x},{y}) is not in the image of {view.width}x{view.height}")
        return policy.dialect.build().write(action, view)
    except ValueError as error:
        raise RejectedStep(BROKEN_RECORD, f"{place}: its correction can't be written: {error}") from error


def advantage_of(member: Member, number: int, place: str) -> float:
    """Return the advantage of a member's selected step ``number``; its own with step-level credit."""
    if not member.step_advantages:
        return member.advantage
    if len(member.step_advantages) != len(member.selected):
        raise RejectedStep(
            BROKEN_RECORD,
            f"{place}: {len(member.step_advantages)} advantages for {len(member.selected)} selected steps",
        )
    return member.step_advantages[number]


def rollout_logprobs(member: Member, taken: ExecutedAction, place: str) -> list[float] | None:
    """Return the engine's log-probabilities of an action (nats); None if no correction applies."""
    if not taken.tokens or (member.source == "pool" and not member.as_online):
        return None
    if len(taken.logprobs) != len(taken.tokens):
        raise RejectedStep(BROKEN_RECORD, f"{place} has {len(taken.tokens)} tokens, {len(taken.logprobs)} logprobs")
    return list(taken.logprobs)
