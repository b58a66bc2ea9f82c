"""What makes an episode of elsewhere a demonstration here, and what keeps it from being one."""

import contextlib
import json
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from console.bundles.episode_index import CurationFacts
from dart_data import demonstration_import, demonstrations
from dart_data.demonstration_import import ImportResult, select_demonstrations
from dart_data.demonstrations import (
    DemonstrationLine,
    DemonstrationStep,
    NotDemonstrable,
    as_demonstration,
    episode_of_line,
)
from dart_data.episode_columns import RecordedEpisode
from dart_data.episode_rows import episode_of, rows_of
from dart_streams.bus.codec import Unencodable
from dart_streams.config import ActionDialect, Bus, Config, Policy
from dart_streams.config.tasks import parse
from dart_streams.curation import groups, in_memory
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.errors import UserError
from plugins.data.tests.unit.test_episode_rows import png
from topics.values import VersionSpan

SEEDS = {"train_seeds": [0, 4], "heldout_seeds": [4, 6], "demonstration_seeds": [6, 9]}
TASKS = parse({"pages": [{"environment": "simulated", "page": "box", "max_steps": 5, **SEEDS}]}, "the test")
CONFIG = Config(bus=Bus(prefix="dart.here."))
CLICK = "Thought: here\nAction: click(start_box='(3,4)')"


def line(
    task: str = "simulated/box#1", reward: float = 1.0, texts: tuple[str, ...] = (CLICK, CLICK)
) -> RecordedEpisode:
    steps = [DemonstrationStep(image=str(number), text=text) for number, text in enumerate(texts)]
    one = DemonstrationLine(task_id=task, instruction="Click.", steps=steps, last_image="9", reward=reward)
    return episode_of_line(one, f"line-{task}", lambda name: png(int(name)))


def of_a_policy(episode: RecordedEpisode) -> RecordedEpisode:
    """The same episode as a policy would have played it in another run."""
    tokens = {"tokens": [1, 2], "logprobs": [-0.1, -0.2], "entropies": [0.1, 0.2], "prompt_sha": "abc"}
    tokens["versions"] = [VersionSpan(version=3, start=0, end=2)]
    order = msgspec.structs.replace(episode.observations[0].order, purpose="train", order_id="g-1/0", group_id="g-1")
    played = [
        msgspec.structs.replace(one, order=order, taken=one.taken and msgspec.structs.replace(one.taken, **tokens))
        for one in episode.observations
    ]
    return RecordedEpisode(observations=played, images=episode.images)


def test_a_demonstration_keeps_screens_and_reward_without_slot_time():
    played = of_a_policy(line())
    shown = as_demonstration(played, CONFIG, TASKS)
    assert shown.images == played.images
    for before, after in zip(played.observations, shown.observations, strict=True):
        assert (after.screenshot, after.instruction, after.step) == (before.screenshot, before.instruction, before.step)
        assert (after.taken and after.taken.text) == (before.taken and before.taken.text)
        assert after.order.purpose == "demonstration"
        assert after.taken is None or not (after.taken.tokens or after.taken.logprobs or after.taken.versions)
        assert after.taken is None or (after.taken.prompt_sha, after.taken.action) == ("", CLICK.partition("\n")[2])
    assert summarize(shown.observations).step_entropies == []
    slow = [msgspec.structs.replace(one, at_ms=1_000_000 * one.step) for one in line().observations]
    shown = as_demonstration(RecordedEpisode(observations=slow, images=line().images), CONFIG, TASKS)
    summary = summarize(shown.observations)
    assert summary.started_ms == summary.finished_ms == slow[0].at_ms


def test_ids_depend_on_the_episode_and_the_deployment():
    first, second = (as_demonstration(line(), CONFIG, TASKS) for _ in range(2))
    assert first == second
    elsewhere = as_demonstration(line(), Config(bus=Bus(prefix="dart.there.")), TASKS)
    ids = {one.observations[0].trajectory_id for one in (line(), first, elsewhere)}
    assert len(ids) == 3, "an import into the same run keeps the original too"


@given(st.sampled_from(["step", "trajectory"]), st.integers(1, 4))
def test_an_exported_demonstration_is_imported_with_other_ids(layout, steps):
    shown = as_demonstration(line(texts=(CLICK,) * steps), CONFIG, TASKS)
    rows = rows_of(layout, "here", shown, CurationFacts(), CONFIG.policy)
    again = as_demonstration(episode_of(rows), CONFIG, TASKS)
    assert without_ids(again) == without_ids(shown)


def without_ids(episode: RecordedEpisode) -> list:
    """What of a demonstration is not drawn from the id that it had before."""
    return [
        msgspec.structs.replace(
            one,
            trajectory_id="t",
            order=msgspec.structs.replace(one.order, order_id="o"),
            taken=one.taken and msgspec.structs.replace(one.taken, request_id="r"),
        )
        for one in episode.observations
    ]


@pytest.mark.parametrize(
    ("episode", "reason"),
    [
        (line(reward=0.5), "no success"),
        (line("simulated/box#77"), "unknown task"),
        (line("simulated/box#4"), "held-out task"),
        (line(texts=("click it",)), "invalid answer"),
    ],
)
def test_unusable_episodes_are_counted_by_reason(episode, reason):
    with pytest.raises(NotDemonstrable) as refused:
        as_demonstration(episode, CONFIG, TASKS)
    assert refused.value.reason == reason
    result, seen = ImportResult(), []
    placed = [demonstrations.Placed("a:1", episode), demonstrations.Placed("a:2", line())]
    assert len(list(select_demonstrations(placed, CONFIG, TASKS, result, seen.append))) == 1
    assert result.left_out == {reason: 1}
    assert result.example.startswith("a:1: ")
    assert seen == [1, 2]


def test_an_unanswered_step_is_no_demonstration():
    episode = line()
    *before, last = episode.observations
    cut = RecordedEpisode(observations=[*before, msgspec.structs.replace(last, taken=None)], images=episode.images)
    with pytest.raises(NotDemonstrable, match="no answer"):
        as_demonstration(cut, CONFIG, TASKS)


def test_a_group_without_success_takes_an_imported_demonstration():
    circle = in_memory.InMemoryCircle(CONFIG, TASKS)
    shown = summarize(as_demonstration(line(), CONFIG, TASKS).observations)
    circle.publish("trajectories", shown.trajectory_id, shown)
    circle.settle()
    state: groups.GroupsState = circle.states[groups.NAME]
    assert [one.trajectory_id for one in state.pools["simulated/box#1"]] == [shown.trajectory_id]


def lines(folder, *values) -> str:
    (folder / "0.png").write_bytes(png(0))
    (folder / "1.png").write_bytes(png(1))
    Image.new("RGB", (1, 300)).save(folder / "thin.png")
    path = folder / "set.jsonl"
    path.write_text("\n".join(value if isinstance(value, str) else json.dumps(value) for value in values))
    return path


GOOD = {
    "task_id": "simulated/box#1",
    "instruction": "Click.",
    "steps": [{"image": "0.png", "text": CLICK}],
    "last_image": "1.png",
}


def test_json_lines_are_read_with_the_images_beside_them(tmp_path):
    path = lines(tmp_path, GOOD, "", {**GOOD, "task_id": "simulated/box#2", "last_image": ""})
    assert demonstrations.episode_count(path) == 2
    one, two = (placed.episode for placed in demonstrations.episodes_in(path))
    assert sorted(one.images.values()) == sorted([png(0), png(1)])
    assert [item.screenshot is None for item in two.observations] == [False, True]
    assert as_demonstration(one, CONFIG, TASKS).observations[-1].end.kind == "success"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "set.jsonl:2: "),
        ({**GOOD, "steps": []}, "set.jsonl:2: it has no step"),
        ({**GOOD, "color": 1}, "set.jsonl:2: Object contains unknown field `color`"),
        ({**GOOD, "reward": 2}, "set.jsonl:2: Expected `float` <= 1"),
        ({**GOOD, "last_image": "7.png"}, "7.png: No such file"),
        ({**GOOD, "last_image": "/etc/passwd"}, "set.jsonl:2: image /etc/passwd is not below"),
        ({**GOOD, "last_image": "../1.png"}, "set.jsonl:2: image ../1.png is not below"),
        ({**GOOD, "last_image": "set.jsonl"}, "set.jsonl:2: an image is no screenshot: it can't be read"),
        ({**GOOD, "last_image": "thin.png"}, "set.jsonl:2: an image is no screenshot: it has 1x300 pixels"),
    ],
)
def test_a_line_that_is_no_demonstration_is_named_with_its_place(tmp_path, bad, reason):
    with pytest.raises(UserError, match=reason.replace("(", r"\(")):
        list(demonstrations.episodes_in(lines(tmp_path, GOOD, bad)))


def test_a_missing_or_other_file_is_refused_with_advice(tmp_path):
    (tmp_path / "set.csv").touch()
    for name, words in (("set.csv", "a .parquet file, a folder"), ("none.jsonl", "no data set")):
        with pytest.raises(UserError, match=words):
            demonstrations.is_lines(tmp_path / name)


def test_an_answer_without_a_place_acts_at_the_pointer():
    said = ({"action": "mouse_move", "coordinate": [3, 4]}, {"action": "wait"}, {"action": "left_click"})
    texts = tuple(
        f"<tool_call>{json.dumps({'name': 'computer_use', 'arguments': arguments})}</tool_call>" for arguments in said
    )
    policy = Policy(dialect=ActionDialect(name="qwen-computer-use"), max_tokens=400)
    found = as_demonstration(line(texts=texts), msgspec.structs.replace(CONFIG, policy=policy), TASKS)
    executed = [one.taken.action for one in found.observations if one.taken]
    assert executed[0] == "Action: move(start_box='(3,4)')"
    assert executed[2] == "Action: click(start_box='(3,4)')"


async def test_an_episode_too_large_for_a_record_is_named_with_advice(monkeypatch):
    for name in ("Publisher", "open_topics"):
        monkeypatch.setattr(demonstration_import, name, lambda *_, **__: contextlib.nullcontext(MagicMock()))
    monkeypatch.setattr(demonstration_import, "open_store", AsyncMock())
    monkeypatch.setattr(demonstration_import, "publish_episode", AsyncMock(side_effect=Unencodable("takes 9 MB")))
    with pytest.raises(UserError, match=r"an episode of simulated/box#1 can't be imported: takes 9 MB\. Shorten"):
        await demonstration_import.publish(CONFIG, iter([line()]), ImportResult())
