"""Data of supervised fine-tuning: what is read of each form, and what is left out, with its line and reason."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_data import sft_set
from dart_data.demonstrations import Placed, episodes_in
from dart_data.sft.episodes import EpisodeFolder
from dart_data.sft_set import AnswerLimits, SftData, prepare
from dart_streams.config import ActionDialect, Config, Policy
from dart_streams.config.sft import Sft
from dart_streams.config.tasks import TaskSet, parse
from dart_streams.errors import UserError
from plugins.data.tests import sft_data
from plugins.data.tests.sft_data import click, demonstrations, draw_box, write_lines
from topics.observations import Observation

SEEDS = {"train_seeds": [0, 4], "heldout_seeds": [4, 6], "demonstration_seeds": [6, 9]}
TASKS = parse({"pages": [{"environment": "simulated", "page": "box", "max_steps": 5, **SEEDS}]}, "the test")
NONE = TaskSet([])
LIMITS = AnswerLimits(lambda text: len(text.split()) + 1, lambda width, height: None)
NATIVE = Policy()
UI_TARS = Policy(dialect=ActionDialect(name="ui-tars"), max_tokens=100)


def config(policy: Policy = NATIVE, unusable: float = 1.0) -> Config:
    trainer = msgspec.structs.replace(Config().trainer, sft=Sft(unusable=unusable))
    return Config(policy=policy, trainer=trainer)


def prepared(
    folder: Path, lines: list[Any], policy: Policy = NATIVE, tasks: TaskSet = NONE, limits: AnswerLimits = LIMITS
) -> tuple[SftData, list[list[Observation]]]:
    data = write_lines(folder / "set.jsonl", lines)
    result = prepare(config(policy), tasks, data, folder / "work", limits)
    stored = EpisodeFolder(folder / "work")
    return result, list(stored.steps_many(list(stored.episodes)).values())


def answers(observations: list[Observation]) -> list[str]:
    return [one.taken.text for one in observations if one.taken]


def reasons(folder: Path, lines: list[Any], **given: Any) -> list[str]:
    """Return what is left out beside a usable line, as ``LINE KIND: reason``."""
    good = demonstrations(folder, 1)
    result, stored = prepared(folder, [*lines, *good], **given)
    assert len(stored) == 1
    return [f"{left.place.rpartition(':')[2]} {left.kind}: {left.reason}" for left in result.unusable]


def chat(folder: Path, *turns: tuple[str, Any], **more: Any) -> dict[str, Any]:
    draw_box(folder / "a.png", 50, 50)
    draw_box(folder / "b.png", 90, 90)
    return {"messages": [{"role": role, "content": content} for role, content in turns], **more}


def test_lines_without_task_ids_are_read(tmp_path):
    result, stored = prepared(tmp_path, demonstrations(tmp_path, 3))
    assert (result.trajectories, result.answers, result.unusable) == (3, 6, [])
    assert answers(stored[0]) == [click(40, 60), click(160, 60)]


def test_an_action_is_written_in_the_dialect(tmp_path):
    [line] = demonstrations(tmp_path, 1, steps=1)
    line["steps"][0] = {"image": line["steps"][0]["image"], "action": "click(start_box='(40,60)')"}
    _, [observations] = prepared(tmp_path, [line], UI_TARS)
    assert answers(observations) == ["Action: click(point='<point>40 60</point>')"]


def test_a_conversation_of_parts_or_of_texts_with_placeholders_is_read(tmp_path):
    image = {"type": "image"}
    line = chat(
        tmp_path,
        ("system", "You are somebody else."),
        ("user", [{"type": "text", "text": "Click the box"}, image]),
        ("assistant", [{"type": "text", "text": click(50, 50)}]),
        ("user", [{"type": "image", "image": "b.png"}]),
        ("assistant", click(90, 90)),
        images=["a.png"],
    )
    _, [observations] = prepared(tmp_path, [line])
    assert observations[0].instruction == "Click the box"
    assert answers(observations) == [click(50, 50), click(90, 90)]
    line = chat(
        tmp_path,
        ("user", "Click the box<image>"),
        ("assistant", click(50, 50)),
        ("user", "<image>"),
        ("assistant", click(90, 90)),
        images=["a.png", {"path": "b.png"}],
    )
    _, [observations] = prepared(tmp_path, [line])
    assert (observations[0].instruction, len(observations)) == ("Click the box", 3)


def test_a_dialects_words_are_no_instruction_and_thoughts_no_action(tmp_path):
    dialect = UI_TARS.dialect.build()
    [_, (_, prompt)] = dialect.system_messages("Click the box", sft_set.prompts.View(224, 224))
    answer = "Thought: it is blue\nAction: click(point='<point>50 50</point>')"
    line = chat(tmp_path, ("user", prompt), ("user", "<image>"), ("assistant", answer), images=["a.png"])
    _, [observations] = prepared(tmp_path, [line], UI_TARS)
    assert observations[0].instruction == "Click the box"
    line = chat(tmp_path, ("user", "Click<image>"), ("assistant", answer), images=["a.png"])
    prepared(tmp_path, [line], UI_TARS)
    [entry] = EpisodeFolder(tmp_path / "work").episodes.values()
    assert entry.action_tokens == [LIMITS.count_tokens("Action: click(point='<point>50 50</point>')")] == [4]


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([("user", "Click"), ("assistant", click(5, 5))], "message 2 answers without an image"),
        ([("user", "<image><image>"), ("assistant", click(5, 5))], "message 1 has a second image"),
        (
            [("user", "<image>"), ("assistant", click(5, 5)), ("user", "Now that<image>"), ("assistant", click(5, 5))],
            "message 3 has text after the first answer",
        ),
        ([("user", "<image>"), ("tool", "x")], "message 2 has the role 'tool'"),
        ([("user", [{"type": "video"}])], "message 1 has a part of type 'video'"),
        ([("user", "<image><image><image>")], "message 1 has a second image"),
        ([("user", "Click<image>"), ("assistant", click(5, 5))], "1 of its images are in no message"),
    ],
)
def test_a_conversation_that_a_run_could_not_have_is_left_out(tmp_path, turns, reason):
    assert reason in reasons(tmp_path, [chat(tmp_path, *turns, images=["a.png", "b.png"])])[0]


CALL = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [5, 5]}}'
SHOWN = {"image": "0-0.png"}


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([{"image": "gone.png", "text": click(1, 1)}], r"missing image: .*gone\.png"),
        ([{"image": "text.png", "text": click(1, 1)}], ".*no screenshot"),
        (
            [SHOWN | {"text": click(1, 1)}, SHOWN | {"text": "Thought: " + "very " * 40 + f"\n{click(1, 1)}"}],
            r"too long: unnamed: step 1 answers with.*policy\.max_tokens is 24",
        ),
        ([SHOWN | {"text": f"<tool_call>\n{CALL}\n</tool_call>"}], "invalid answer: .*it reads as qwen-computer-use"),
        ([SHOWN | {"action": "jump()"}], "invalid action: "),
    ],
    ids=["missing image", "no image", "longer than the policy's", "another dialect", "out of the grammar"],
)
def test_a_step_that_can_not_be_learned_is_left_out_with_the_reason(tmp_path, steps, reason):
    (tmp_path / "text.png").write_text("no image")
    [left] = reasons(tmp_path, [{"instruction": "Click", "steps": steps}])
    assert re.match(f"1 {reason}", left, re.DOTALL)


def test_broken_lines_are_left_out_with_their_numbers(tmp_path):
    good = demonstrations(tmp_path, 2)
    lines = ["{", json.dumps(good[0]), "", '{"instruction": "x"}', '"text"', json.dumps(good[1])]
    (tmp_path / "set.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    result = prepare(config(), NONE, tmp_path / "set.jsonl", tmp_path / "work", LIMITS)
    assert [left.place.rpartition(":")[2] for left in result.unusable] == ["1", "4", "5", "7"]
    assert result.trajectories == 2


def test_a_step_with_text_and_action_or_neither_is_left_out(tmp_path):
    steps = [{"image": "0-0.png", "text": click(1, 1), "action": "wait()"}], [{"image": "0-0.png"}], []
    found = reasons(tmp_path, [{"instruction": "Click", "steps": each} for each in steps])
    assert ["either a text or an action" in each for each in found] == [True, True, False]
    assert "no step" in found[2]


def test_failures_held_out_tasks_and_repeats_are_left_out(tmp_path):
    [line] = demonstrations(tmp_path, 1)
    failed, heldout = {**line, "reward": 0.0}, {**line, "task_id": "simulated/box#4"}
    known = {**line, "task_id": "simulated/box#1"}
    data = write_lines(tmp_path / "set.jsonl", [failed, heldout, known, known])
    result = prepare(config(), TASKS, data, tmp_path / "work", LIMITS)
    assert [left.kind for left in result.unusable] == ["no success", "held-out task", "repeated"]
    assert result.trajectories == 1


def test_empty_data_and_a_screen_that_the_model_refuses_are_refused(tmp_path):
    def refuse(width: int, height: int) -> None:
        raise ValueError(f"{width}x{height} is too narrow")

    data = write_lines(tmp_path / "set.jsonl", demonstrations(tmp_path, 1))
    with pytest.raises(UserError, match="224x224 is too narrow"):
        prepare(config(), NONE, data, tmp_path / "work", AnswerLimits(LIMITS.count_tokens, refuse))
    (tmp_path / "set.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match=r"set\.jsonl is empty"):
        prepare(config(), NONE, tmp_path / "set.jsonl", tmp_path / "work", LIMITS)


@pytest.mark.parametrize(("unusable", "strict", "key"), [(0.2, False, "trainer.sft.unusable"), (1.0, True, "--strict")])
def test_too_many_unusable_lines_stop_with_the_first_one(tmp_path, unusable, strict, key):
    lines = [*demonstrations(tmp_path, 2), {"instruction": "x", "steps": []}]
    data = write_lines(tmp_path / "set.jsonl", lines)
    left: list[sft_set.Unusable] = []
    with pytest.raises(UserError, match=rf"1 of 3 .*set\.jsonl:3: it has no step.*{key}"):
        prepare(config(unusable=unusable), NONE, data, tmp_path / "work", LIMITS, left.append, strict=strict)
    assert [one.place for one in left] == [f"{data}:3"]


def test_equal_data_have_equal_digests(tmp_path):
    lines = demonstrations(tmp_path, 3)
    digests = []
    for name in ("a", "b"):
        data = write_lines(tmp_path / f"{name}.jsonl", lines)
        prepare(config(), NONE, data, tmp_path / name, LIMITS)
        digests.append(EpisodeFolder(tmp_path / name).sha256)
    assert digests[0] == digests[1]


def test_episodes_become_lines_and_back_but_for_those_with_calls(tmp_path):
    given = [{**line, "task_id": "simulated/box#1"} for line in demonstrations(tmp_path, 2)]
    placed = list(episodes_in(sft_data.write_lines(tmp_path / "set.jsonl", given)))
    (tmp_path / "other").mkdir()
    assert sft_set.write_lines(placed, tmp_path / "other" / "again.jsonl") == (2, [])
    for before, after in zip(placed, episodes_in(tmp_path / "other" / "again.jsonl"), strict=True):
        assert after.episode.images == before.episode.images
        assert answers(after.episode.observations) == answers(before.episode.observations)
    [placed] = episodes_in(
        sft_data.write_lines(tmp_path / "a.jsonl", [{**demonstrations(tmp_path, 1)[0], "task_id": "x"}])
    )
    first, second, *rest = placed.episode.observations
    with_call = [first, msgspec.structs.replace(second, returned="42"), *rest]
    changed = Placed("here", msgspec.structs.replace(placed.episode, observations=with_call))
    assert sft_set.write_lines([changed], tmp_path / "b.jsonl") == (
        0,
        ["here: it has calls, which JSON lines do not hold"],
    )
