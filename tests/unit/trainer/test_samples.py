"""From groups and stored steps to samples, with a renderer of three lines: no torch, no services."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest

from benchmarks.synthetic_groups import BacklogShape, Maker, SyntheticBacklog, alter_group
from dart_streams.config import Config, Policy
from dart_streams.episodes import prompts
from topics.curated import CuratedGroup
from topics.observations import Observation
from topics.values import BlobRef, MessagePart, Sampling
from trainer.data.samples import Selection, select

LIMITS = Config().policy


class Prompt(NamedTuple):
    token_ids: list[int]
    images: list[BlobRef]
    sha: str


class Characters:
    """Renders a prompt as its characters."""

    def prompt(self, turns: Sequence[MessagePart]) -> Prompt:
        images = [turn.image for turn in turns if turn.image]
        text = "|".join(turn.text or turn.image.sha256 for turn in turns if turn.text or turn.image)
        return Prompt([ord(letter) for letter in text], images, text)

    def recorded_prompt(self, observations: Sequence[Observation], policy: Policy, _sha: str) -> Prompt:
        return self.prompt(prompts.prompt_turns(observations, policy))

    def answer_tokens(self, text: str) -> list[int]:
        return [ord(letter) for letter in text] + [0]


@pytest.fixture
def made() -> SyntheticBacklog:
    return Maker(Config(), Characters(), BacklogShape(members=4, steps=3)).group(7)


def selected(made: SyntheticBacklog, group: CuratedGroup | None = None) -> Selection:
    group = group or made.group
    return select(group, group.members, made.observations, Characters(), LIMITS)


def with_source(made: SyntheticBacklog, source: str) -> CuratedGroup:
    members = [msgspec.structs.replace(member, source=source) for member in made.group.members]
    return msgspec.structs.replace(made.group, members=members)


def test_only_selected_steps_are_samples_with_the_rollouts_own_tokens(made: SyntheticBacklog) -> None:
    selection = selected(made)
    assert not selection.refused
    expected = {(member.trajectory_id, step) for member in made.group.members for step in member.selected}
    assert {(item.trajectory_id, item.step) for item in selection.samples} == expected
    for item in selection.samples:
        taken = made.observations[item.trajectory_id][item.step + 1].taken
        assert taken is not None
        assert (item.answer, item.logprobs, item.versions) == (taken.tokens, taken.logprobs, taken.versions)
    members = [msgspec.structs.replace(member, selected=[0]) for member in made.group.members]
    selection = selected(made, msgspec.structs.replace(made.group, members=members))
    assert {item.step for item in selection.samples} == {0}


def test_step_level_credit_gives_each_step_its_advantage(made: SyntheticBacklog) -> None:
    first, *others = made.group.members
    own = [0.5 * step for step in first.selected]
    credited = msgspec.structs.replace(first, step_advantages=own)
    selection = selected(made, msgspec.structs.replace(made.group, members=[credited, *others]))
    found = {(item.trajectory_id, item.step): item.advantage for item in selection.samples}
    assert [found[first.trajectory_id, step] for step in first.selected] == own
    assert {found[other.trajectory_id, step] for other in others for step in other.selected} == {-1.0, 1.0}


def test_a_member_with_too_few_advantages_is_refused_and_counted(made: SyntheticBacklog) -> None:
    whole = next(member for member in made.group.members if len(member.selected) > 1)
    broken = msgspec.structs.replace(whole, step_advantages=[0.5])
    selection = selected(made, msgspec.structs.replace(made.group, members=[broken]))
    assert not selection.samples
    assert selection.refused == {"broken_record": len(whole.selected)}
    assert "1 advantages for" in selection.example


def test_samples_of_the_same_first_screen_are_neighbors(made: SyntheticBacklog) -> None:
    steps = [item.step for item in selected(made).samples]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("changed", "reason", "example"),
    [
        ({"prompt_sha": "a0"}, "prompt_mismatch", "trajectory-7-1"),
        ({"logprobs": [-1.0]}, "broken_record", "trajectory-7-1"),
        ({"tokens": [], "logprobs": [], "prompt_sha": ""}, "no_tokens", "rollout.openai"),
    ],
    ids=["another prompt", "too few log-probabilities", "unmarked by an older data manager"],
)
def test_a_step_that_can_not_be_trained_on_is_refused_and_counted(made: SyntheticBacklog, changed, reason, example):
    selection = selected(alter_group(made, "trajectory-7-1", 1, **changed))
    assert selection.refused == {reason: 1}
    assert example in selection.example
    assert ("trajectory-7-1", 0) not in {(item.trajectory_id, item.step) for item in selection.samples}


@pytest.mark.parametrize("there", [slice(1), slice(1, None)], ids=["the first alone", "all but the first"])
def test_a_step_that_the_store_lacks_is_refused_and_counted(made: SyntheticBacklog, there: slice) -> None:
    stored = {**made.observations, "trajectory-7-0": made.observations["trajectory-7-0"][there]}
    selection = selected(made._replace(observations=stored))
    assert selection.refused == {"missing_step": len(made.group.members[0].selected)}


def test_a_demonstration_and_a_pooled_member_have_tokens_but_no_logprobs(made: SyntheticBacklog) -> None:
    demonstration = alter_group(made, "trajectory-7-1", 1, tokens=[], logprobs=[], text="click(...)", prompt_sha="")
    pooled = with_source(demonstration, "pool")
    item = next(
        s for s in selected(demonstration, pooled).samples if (s.trajectory_id, s.step) == ("trajectory-7-1", 0)
    )
    assert item.answer == Characters().answer_tokens("click(...)")
    assert item.logprobs is None
    plain, pooled = selected(made), selected(made, with_source(made, "pool"))
    assert [item.answer for item in pooled.samples] == [item.answer for item in plain.samples]
    assert all(item.logprobs is None for item in pooled.samples)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.8), Sampling(temperature=0.0), Sampling(temperature=0.005)])
def test_a_step_of_a_cut_distribution_is_refused_but_from_the_pool(made: SyntheticBacklog, sampling: Sampling) -> None:
    first, *others = made.observations["trajectory-7-0"]
    order = msgspec.structs.replace(first.order, sampling=sampling)
    cut = {**made.observations, "trajectory-7-0": [msgspec.structs.replace(first, order=order), *others]}
    made = made._replace(observations=cut)
    assert selected(made).refused == {"cut_distribution": len(made.group.members[0].selected)}
    assert not selected(made, with_source(made, "pool")).refused
