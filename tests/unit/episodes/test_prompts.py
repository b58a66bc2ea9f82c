"""Prompts as messages, beside those of the models' own agents, on a screen of 1920x1080."""

import hashlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.actions.dialects import View
from dart_streams.actions.dialects.ui_tars_prompts import TEMPLATES
from dart_streams.config import ActionDialect, Policy, parse
from dart_streams.episodes import prompts
from dart_streams.errors import ConfigError
from tests import events
from topics.observations import Observation
from topics.values import BlobRef, MessagePart

INSTRUCTION = "Set the color mode to {CMYK} in 'Preferences'."
OSWORLD_PROMPT_SHA = "712a055fb0a304768a86ba8da592a97c9ed758e281e34991229341bf50d3e622"
"""Of OSWorld's mm_agents/uitars15_v1.py: UITARS_USR_PROMPT_THOUGHT with UITARS_NORMAL_ACTION_SPACE in it."""
UI_TARS = Policy(
    max_images=5, max_texts=100, max_tokens=500, max_pixels=16384 * 28 * 28, dialect=ActionDialect(name="ui-tars")
)


def observed(steps: int) -> list[Observation]:
    """Return a trajectory of ``steps`` actions on a screen of 1920x1080."""
    result = []
    for step in range(steps + 1):
        taken = None
        if step:
            taken = events.executed_action(
                f"Thought: Step {step}.\nAction: click(start_box='({step},549)')",
                request_id=f"t/{step - 1}/0",
                action=f"Action: click(start_box='({step},549)')",
            )
        result.append(
            events.observation(
                step,
                instruction=INSTRUCTION,
                screenshot=BlobRef(sha256=f"5c{step}", size=1, width=1920, height=1080),
                taken=taken,
                at_ms=0,
            )
        )
    return result


def agent_messages(prompt: str, screens: list[str], answers: list[str], history: int) -> list[dict[str, Any]]:
    """The messages of OSWorld's agent for UI-TARS-1.5: all answers, and at most ``history`` screens, the newest."""
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]},
        {"role": "user", "content": [{"type": "text", "text": prompt}]},
    ]
    for number, answer in enumerate(answers):
        if number + history > len(answers):
            messages.append({"role": "user", "content": [{"type": "image", "image": screens[number]}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    messages.append({"role": "user", "content": [{"type": "image", "image": screens[len(answers)]}]})
    return messages


def as_messages(parts: list[MessagePart]) -> list[dict[str, Any]]:
    def content(part: MessagePart) -> dict[str, Any]:
        return (
            {"type": "text", "text": part.text} if part.image is None else {"type": "image", "image": part.image.sha256}
        )

    return [{"role": m[0].role, "content": [content(part) for part in m]} for m in prompts.split_messages(parts)]


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("history", [1, 3, 5])
def test_the_messages_are_those_of_the_models_agent_for_osworld(steps, history):
    policy = msgspec.structs.replace(UI_TARS, max_images=history)
    prompt = TEMPLATES["point"].replace("{language}", "English").replace("{instruction}", INSTRUCTION)
    screens, answers = [f"5c{n}" for n in range(steps + 1)], [o.taken.text for o in observed(steps) if o.taken]
    expected = agent_messages(prompt, screens, answers, history)
    assert as_messages(prompts.prompt_turns(observed(steps), policy)) == expected


def test_answers_in_boxes_have_their_tokens_and_osworlds_prompt():
    policy = msgspec.structs.replace(UI_TARS, dialect=ActionDialect(name="ui-tars", prompt="box"))
    prompt = TEMPLATES["box"].replace("{language}", "English").replace("{instruction}", INSTRUCTION)
    answers = [f"Thought: Step {n}.\nAction: click(start_box='<|box_start|>({n},549)<|box_end|>')" for n in (1, 2)]
    expected = agent_messages(prompt, ["5c0", "5c1", "5c2"], answers, 5)
    assert as_messages(prompts.prompt_turns(observed(2), policy)) == expected
    assert hashlib.sha256(TEMPLATES["box"].encode()).hexdigest() == OSWORLD_PROMPT_SHA


@pytest.mark.parametrize(("prompt", "name"), [("point", "COMPUTER_USE_DOUBAO"), ("mobile", "MOBILE_USE_DOUBAO")])
def test_the_prompts_in_points_are_those_of_the_package(prompt, name):
    package = pytest.importorskip("ui_tars.prompt", reason="ui-tars is not installed in this environment: make dev")
    for language in ("English", "Chinese"):
        theirs = getattr(package, name).format(language=language, instruction=INSTRUCTION)
        dialect = ActionDialect(name="ui-tars", prompt=prompt, language=language)
        policy = msgspec.structs.replace(UI_TARS, dialect=dialect)
        assert prompts.prompt_turns(observed(0), policy)[1].text == theirs


def test_the_policy_sees_a_screen_of_1920x1080_as_the_model_resizes_it():
    seen = prompts.view_of(observed(2), UI_TARS)
    assert (seen.width, seen.height, seen.place) == (1932, 1092, (2, 549))
    small = prompts.view_of(observed(0), msgspec.structs.replace(UI_TARS, max_pixels=1_003_520))
    assert (small.width, small.height) == (1316, 728)
    assert prompts.view_of(observed(0)[:0], UI_TARS) == View(1, 1)


def test_qwens_prompt_has_the_size_of_the_image_or_a_thousand():
    absolute = msgspec.structs.replace(UI_TARS, dialect=ActionDialect(name="qwen-computer-use"))
    relative = msgspec.structs.replace(UI_TARS, dialect=ActionDialect(name="qwen-computer-use", coordinates="relative"))
    for policy, size in ((absolute, "1932x1092"), (relative, "1000x1000")):
        system, first, *_ = as_messages(prompts.prompt_turns(observed(1), policy))
        assert f"The screen's resolution is {size}." in system["content"][0]["text"]
        assert [part["type"] for part in first["content"]] == ["text", "image"]
        assert first["content"][0]["text"] == INSTRUCTION


def test_the_prompt_of_the_native_dialect_is_what_it_was_and_its_bytes_too():
    parts = prompts.prompt_turns(observed(3), Policy())
    system = MessagePart(role="system", text="You use a computer. Answer with one action.")
    assert parts[:2] == [system, MessagePart(role="user", text=INSTRUCTION)]
    assert [part.image.sha256 if part.image else part.role for part in parts[2:]] == [
        "assistant",
        "assistant",
        "5c2",
        "assistant",
        "5c3",
    ]
    assert b"separate" not in msgspec.json.encode(parts)
    assert [m["role"] for m in as_messages(parts)] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_the_last_answers_are_kept_without_their_screens():
    policy = Policy(max_images=1, max_texts=2)
    assert [part.text for part in prompts.prompt_turns(observed(3), policy) if part.role == "assistant"] == [
        observation.taken.text for observation in observed(3)[2:] if observation.taken
    ]


@given(st.integers(1, 8), st.integers(0, 7), st.integers(0, 8), st.integers(0, 8), st.integers(1, 30))
def test_a_block_window_makes_prompts_that_extend_each_other(images, fewer, texts, fewer_texts, steps):
    policy = Policy(
        max_images=images,
        min_images=max(1, images - fewer),
        max_texts=texts,
        min_texts=min(texts, max(1, texts - fewer_texts)),
    )
    taken = observed(steps)
    parts = [prompts.prompt_turns(taken[: number + 1], policy) for number in range(steps + 1)]
    drops = 0
    for number, turns in enumerate(parts):
        screens = sum(part.image is not None for part in turns)
        answers = sum(part.role == "assistant" for part in turns)
        assert min(policy.min_images, number + 1) <= screens <= images
        assert min(policy.min_texts, number) <= answers <= texts
        if number and turns[: len(parts[number - 1])] != parts[number - 1]:
            drops += 1
    most = max(0, steps + 1 - images) / (images - policy.min_images + 1)
    most += max(0, steps - texts) / (texts - policy.min_texts + 1 if policy.min_texts else 1)
    assert drops <= math.ceil(most) + 1, "a block is dropped, not one at each step"


def test_the_bounds_of_blocks_are_those_of_the_paper_at_30_steps():
    policy = Policy(max_images=7, min_images=3, max_texts=100)
    shown = [number + 1 - prompts.first_shown(number + 1, 3, 7) for number in range(30)]
    assert shown[:12] == [1, 2, 3, 4, 5, 6, 7, 3, 4, 5, 6, 7]
    assert policy.sliding.min_images == 0


@given(st.integers(0, 200), st.integers(1, 50))
def test_equal_bounds_are_a_sliding_window(count, most):
    assert prompts.first_shown(count, most, most) == prompts.first_shown(count, 0, most) == max(0, count - most)


@pytest.mark.parametrize("window", [{"min_images": 3, "max_images": 2}, {"min_texts": 6}])
def test_a_window_with_its_bounds_crossed_is_refused(window):
    with pytest.raises(ConfigError, match=r"is more than max_"):
        parse({"policy": window}, "test")


@pytest.mark.parametrize("name", ["native", "ui-tars", "qwen-computer-use", "qwen-mobile-use", "computer_13"])
def test_what_was_returned_is_shown_as_long_as_its_answer(name):
    policy = Policy(max_images=1, max_texts=2, max_tokens=500, dialect=ActionDialect(name=name))
    plain = observed(4)
    returned = [msgspec.structs.replace(one, returned=f"#returned {one.step}" if one.step else "") for one in plain]
    texts = [turn.text for turn in prompts.prompt_turns(returned, policy) if turn.text is not None]
    assert [step for step in range(1, 5) if any(f"#returned {step}" in text for text in texts)] == [3, 4]
    unchanged = [turn for turn in prompts.prompt_turns(returned, policy) if "#returned" not in (turn.text or "")]
    assert unchanged == prompts.prompt_turns(plain, policy)
