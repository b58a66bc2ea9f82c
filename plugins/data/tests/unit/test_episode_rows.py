"""An episode as rows and back is the same episode, whatever it is; prompts and images are where the columns say."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from console.bundles.episode_index import CurationFacts
from dart_data.episode_columns import ROWS, InvalidRow, Layout, RecordedEpisode
from dart_data.episode_rows import add_image, episode_of, rows_of
from dart_streams.config import Policy
from dart_streams.episodes import prompts
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import OfferedCall, Sampling, VersionSpan


def png(number: int, kind: str = "PNG") -> bytes:
    """A small image, another one for each number."""
    file = io.BytesIO()
    Image.new("RGB", (4 + number % 3, 5), (number % 256, number // 256, 7)).save(file, kind)
    return file.getvalue()


SCREENS = [png(number, kind) for number in range(6) for kind in ("PNG", "JPEG")]
texts = st.text(max_size=20)
names = st.text(min_size=1, max_size=8)
reals = st.floats(-1e6, 1e6)
OFFER = OfferedCall(name="calc.set", description="Set a cell.", parameters="{}")
LAYOUTS: tuple[Layout, ...] = ("step", "trajectory")


@st.composite
def answers(draw: st.DrawFn) -> ExecutedAction:
    count = draw(st.integers(0, 3))
    return ExecutedAction(
        request_id=draw(names),
        text=draw(texts),
        action=draw(st.none() | texts),
        tokens=draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count)),
        logprobs=draw(st.lists(reals, min_size=count, max_size=count)),
        entropies=draw(st.lists(reals, min_size=count, max_size=count)),
        versions=[VersionSpan(version=draw(st.integers(0, 9)), start=0, end=count)] if count else [],
        prompt_sha=draw(st.text("0123456789abcdef", max_size=64)),
        queue_ms=draw(reals),
        generate_ms=draw(reals),
        execute_ms=draw(reals),
        recorded_from=draw(st.none() | names),
        take_over=draw(st.none() | names),
    )


@st.composite
def episodes(draw: st.DrawFn, least: int = 0) -> RecordedEpisode:
    """An episode as an environment worker may publish it; its last step may be unanswered, its screens missing."""
    steps = draw(st.integers(least, 4))
    order = RolloutOrder(
        order_id=draw(names),
        group_id=draw(names),
        group_size=draw(st.integers(0, 9)),
        sample=draw(st.integers(0, 9)),
        attempt=draw(st.integers(0, 9)),
        task_id=draw(names),
        max_steps=draw(st.integers(0, 99)),
        purpose=draw(st.sampled_from(["train", "eval", "demonstration"])),
        sampling=Sampling(temperature=draw(st.floats(0, 2)), top_p=draw(st.floats(0, 1)), max_tokens=24),
        after_version=draw(st.integers(0, 9)),
    )
    end = EpisodeEnd(
        kind=draw(st.sampled_from(["success", "failure", "truncated", "env_error", "policy_error"])),
        reward=draw(st.none() | st.floats(0, 1)),
        reason=draw(texts),
    )
    images, instruction = {}, draw(texts)
    observations = []
    for step in range(steps + 1):
        data = draw(st.none() | st.sampled_from(SCREENS))
        if data is not None:
            add_image(data, images)
        unanswered = step == steps and draw(st.booleans())
        observations.append(
            Observation(
                trajectory_id="t",
                order=order,
                step=step,
                instruction=instruction,
                screenshot=add_image(data, {}),
                taken=draw(answers()) if step and not unanswered else None,
                end=end if step == steps else None,
                env_host="env-0",
                at_ms=draw(st.integers(0, 2**42)),
                calls=draw(st.sampled_from([[], [OFFER]])) if not step else [],
                returned=draw(texts) if step else "",
            )
        )
    return RecordedEpisode(observations=observations, images=images)


policies = st.builds(Policy, max_images=st.integers(1, 3), max_texts=st.integers(0, 3))
facts = st.builds(
    CurationFacts,
    advantage=st.none() | reals,
    step_advantages=st.dictionaries(st.integers(0, 3), reals, max_size=3),
    train_steps=st.lists(st.integers(0, 99), max_size=3),
)


@given(episodes(), facts, policies)
def test_a_trajectory_row_gives_back_the_episode(episode, known, policy):
    [row] = rows_of("trajectory", "run", episode, known, policy)
    assert episode_of([row]) == episode


@given(episodes(least=1), facts, policies)
def test_step_rows_give_back_the_episode(episode, known, policy):
    rows = rows_of("step", "run", episode, known, policy)
    back = episode_of(rows)
    assert back.observations == episode.observations
    assert back.images == episode.images


@given(episodes(least=1), facts, policies)
def test_a_step_row_has_the_prompt_that_the_policy_was_sent_and_its_answer(episode, known, policy):
    for number, row in enumerate(rows_of("step", "run", episode, known, policy)):
        turns = prompts.prompt_turns(episode.observations[: number + 1], policy)
        shown = [episode.images[turn.image.sha256] for turn in turns if turn.image]
        assert [image["bytes"] for image in row["images"]] == shown
        parts = [(message["role"], part) for message in row["messages"] for part in message["content"]]
        answer = episode.observations[number + 1].taken
        assert [part["text"] for _, part in parts if part["type"] == "text"] == [
            *(turn.text for turn in turns if turn.text is not None),
            *([answer.text] if answer else []),
        ]
        assert sum(part["type"] == "image" for _, part in parts) == len(row["images"])
        screen = episode.observations[number].screenshot
        assert (row["screen"] is None) == (screen is None)
        if screen:
            assert row["images"][row["screen"]]["bytes"] == episode.images[screen.sha256]


@given(episodes(), facts, policies, st.sampled_from(LAYOUTS))
def test_a_row_has_the_declared_columns_and_no_others(episode, known, policy, layout):
    declared = [name for struct in ROWS[layout] for name in struct.__struct_fields__]
    for row in rows_of(layout, "run", episode, known, policy):
        assert list(row) == declared


@given(episodes(least=2), policies)
def test_a_step_has_its_advantage_or_null_if_it_is_not_selected(episode, policy):
    known = CurationFacts(advantage=0.5, step_advantages={1: 0.75}, train_steps=[3, 4])
    rows = rows_of("step", "run", episode, known, policy)
    assert [(row["advantage"], row["selected"]) for row in rows[:2]] == [(None, False), (0.75, True)]
    assert {row["trajectory_advantage"] for row in rows} == {0.5}
    assert rows[0]["train_steps"] == [3, 4]


@given(episodes(least=2), policies)
def test_rows_that_lack_a_step_are_refused(episode, policy):
    rows = rows_of("step", "run", episode, CurationFacts(), policy)
    for gap in (rows[1:], rows[:-1], [*rows, rows[-1]], [rows[1], rows[0], *rows[2:]]):
        with pytest.raises(InvalidRow, match="steps"):
            episode_of(gap)


def test_invalid_rows_and_an_image_that_is_none_are_refused():
    with pytest.raises(InvalidRow, match="no row"):
        episode_of([])
    with pytest.raises(InvalidRow, match="missing required field"):
        episode_of([{"trajectory_id": "t"}])
    with pytest.raises(InvalidRow, match="can't be read"):
        add_image(b"no image", {})


@pytest.mark.parametrize(
    "mode, size, why",
    [("RGB", (1, 40), "a side has at least"), ("RGB", (2000, 8), "times the other"), ("RGBA", (8, 8), "transparent")],
)
def test_an_unusable_picture_is_refused(mode, size, why):
    Image.new(mode, size).save(drawn := io.BytesIO(), "PNG")
    with pytest.raises(InvalidRow, match=why):
        add_image(drawn.getvalue(), {})
