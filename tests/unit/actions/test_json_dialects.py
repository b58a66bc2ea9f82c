"""Answers in JSON: the Qwen-VL models' tool calls, and OSWorld's ``computer_13``."""

import json

import pytest

from dart_streams import actions
from dart_streams.actions.dialects import Computer13, QwenComputerUse, QwenMobileUse, View
from dart_streams.actions.offered import offer_call

VIEW = View(1288, 728, (7, 8))


def qwen(arguments, name="computer_use"):
    return f"Action: do it.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def fenced(*items):
    return "I see a button.\n" + "\n".join(f"```json\n{json.dumps(item)}\n```" for item in items)


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [5, 6]}, actions.Click(5, 6)),
        ({"action": "left_click"}, actions.Click(7, 8)),
        ({"action": "right_click", "coordinate": [5, 6]}, actions.Click(5, 6, "right")),
        ({"action": "middle_click", "coordinate": [5, 6]}, actions.Click(5, 6, "middle")),
        ({"action": "double_click", "coordinate": [5, 6]}, actions.Click(5, 6, count=2)),
        ({"action": "triple_click", "coordinate": [5, 6]}, actions.Click(5, 6, count=3)),
        ({"action": "mouse_move", "coordinate": [5.4, 6.6]}, actions.Move(5, 7)),
        ({"action": "left_click_drag", "coordinate": [5, 6]}, actions.Drag(7, 8, 5, 6)),
        ({"action": "scroll", "pixels": -5}, actions.Scroll(7, 8, "down", 5)),
        ({"action": "scroll", "pixels": 3, "coordinate": [5, 6]}, actions.Scroll(5, 6, "up", 3)),
        ({"action": "hscroll", "pixels": 3}, actions.Scroll(7, 8, "right", 3)),
        ({"action": "key", "keys": ["ctrl", "c"]}, actions.Hotkey(("ctrl", "c"))),
        ({"action": "type", "text": 'it\'s "x"\n'}, actions.Type('it\'s "x"\n')),
        ({"action": "wait", "time": 2}, actions.Wait()),
        ({"action": "answer", "text": "42"}, actions.Finished("42")),
        ({"action": "terminate", "status": "success"}, actions.Finished()),
        ({"action": "terminate", "status": "failure"}, actions.CallUser()),
    ],
)
def test_tool_calls_of_qwen_are_read(arguments, action):
    reading = QwenComputerUse().read(qwen(arguments), VIEW)
    assert (reading.actions, reading.wrong) == ((action,), ())


APPS = (offer_call("open_app", "", {"type": "object"}), offer_call("set_text", "", {"type": "object"}))


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "click", "coordinate": [5, 6]}, actions.Click(5, 6)),
        ({"action": "long_press", "coordinate": [5, 6], "time": 1}, actions.Click(5, 6, "right")),
        ({"action": "swipe", "coordinate": [5, 6], "coordinate2": [7, 1]}, actions.Drag(5, 6, 7, 1)),
        ({"action": "type", "text": "it's"}, actions.Type("it's")),
        ({"action": "system_button", "button": "Back"}, actions.Hotkey(("back",))),
        ({"action": "system_button", "button": "Home"}, actions.Hotkey(("home",))),
        ({"action": "system_button", "button": "Enter"}, actions.Hotkey(("enter",))),
        ({"action": "key", "text": "volume_up"}, actions.Hotkey(("volume_up",))),
        ({"action": "open", "text": "Clock"}, actions.Call("open_app", {"app_name": "Clock"})),
        ({"action": "wait", "time": 1}, actions.Wait()),
        ({"action": "answer", "text": "42"}, actions.Finished("42")),
        ({"action": "terminate", "status": "success"}, actions.Finished()),
        ({"action": "terminate", "status": "failure"}, actions.CallUser()),
    ],
)
def test_tool_calls_of_qwen_on_a_phone_are_read_and_written(arguments, action):
    reading = QwenMobileUse().read(qwen(arguments, "mobile_use"), VIEW, APPS)
    assert (reading.actions, reading.wrong) == ((action,), ())
    assert QwenMobileUse().write(action, VIEW) == qwen(arguments, "mobile_use").partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ({"action": "click"}, None),
        ({"action": "swipe", "coordinate": [5, 6]}, None),
        ({"action": "open", "text": " "}, None),
        ({"action": "system_button", "button": "Power"}, None),
        ({"action": "left_click_drag", "coordinate": [5, 6]}, None),
        ({"action": "tap", "coordinate": [5, 6]}, ["name"]),
        ({"action": "system_button", "button": "BACK"}, ["key"]),
        ({"action": "click", "coordinate": [5, 6], "keys": ["a"]}, ["argument"]),
    ],
)
def test_calls_of_another_form_on_a_phone_are_noted_or_refused(arguments, kinds):
    lenient, text = QwenMobileUse(strictness="lenient"), qwen(arguments, "mobile_use")
    with pytest.raises(actions.Unparsable):
        QwenMobileUse().read(text, VIEW, APPS)
    if kinds is None:
        with pytest.raises(actions.Unparsable):
            lenient.read(text, VIEW, APPS)
    else:
        assert [wrong.kind for wrong in lenient.read(text, VIEW, APPS).wrong] == kinds


def test_an_app_is_opened_only_where_that_is_offered():
    with pytest.raises(actions.Unparsable, match="unknown function 'open_app'"):
        QwenMobileUse().read(qwen({"action": "open", "text": "Clock"}, "mobile_use"), VIEW)
    [(_, prompt), _] = QwenMobileUse().system_messages("Go.", VIEW, APPS)
    assert '"name": "set_text"' in prompt and '"name": "open_app"' not in prompt
    assert "The screen's resolution is 1288x728." in prompt


@pytest.mark.parametrize(
    ("item", "action"),
    [
        ({"action_type": "MOVE_TO", "x": 5, "y": 6}, actions.Move(5, 6)),
        ({"action_type": "CLICK"}, actions.Click(7, 8)),
        (
            {"action_type": "CLICK", "x": 5, "y": 6, "button": "middle", "num_clicks": 3},
            actions.Click(5, 6, "middle", 3),
        ),
        ({"action_type": "CLICK", "parameters": {"x": 5, "y": 6}}, actions.Click(5, 6)),
        ({"action_type": "RIGHT_CLICK", "x": 5, "y": 6}, actions.Click(5, 6, "right")),
        ({"action_type": "DOUBLE_CLICK"}, actions.Click(7, 8, count=2)),
        ({"action_type": "MOUSE_DOWN"}, actions.MouseDown(7, 8)),
        ({"action_type": "MOUSE_UP", "button": "right"}, actions.MouseUp(7, 8, "right")),
        ({"action_type": "DRAG_TO", "x": 5, "y": 6}, actions.Drag(7, 8, 5, 6)),
        ({"action_type": "SCROLL", "dx": 0, "dy": -3}, actions.Scroll(7, 8, "down", 3)),
        ({"action_type": "SCROLL", "dx": -2, "dy": 0}, actions.Scroll(7, 8, "left", 2)),
        ({"action_type": "TYPING", "text": "<a>"}, actions.Type("<a>")),
        ({"action_type": "PRESS", "key": "enter"}, actions.Hotkey(("enter",))),
        ({"action_type": "PRESS", "key": " "}, actions.Hotkey(("space",))),
        ({"action_type": "KEY_DOWN", "key": "shift"}, actions.KeyDown("shift")),
        ({"action_type": "KEY_UP", "key": "shift"}, actions.KeyUp("shift")),
        ({"action_type": "HOTKEY", "keys": ["ctrl", "s"]}, actions.Hotkey(("ctrl", "s"))),
        ({"action_type": "WAIT"}, actions.Wait()),
        ({"action_type": "DONE"}, actions.Finished()),
        ({"action_type": "FAIL"}, actions.CallUser()),
    ],
)
def test_actions_of_computer_13_are_read(item, action):
    reading = Computer13().read(fenced(item), VIEW)
    assert (reading.actions, reading.wrong) == ((action,), ())
    assert Computer13().read(json.dumps(item), VIEW).actions == (action,)


@pytest.mark.parametrize(
    ("word", "action"), [("WAIT", actions.Wait()), ("DONE", actions.Finished()), ("FAIL", actions.CallUser())]
)
@pytest.mark.parametrize("form", ["{}", "```{}```", "```\n{}\n```", "It is so.\n```{}```"])
def test_the_words_of_osworld_are_read(word, action, form):
    assert Computer13().read(form.format(word), VIEW).actions == (action,)


def test_what_follows_a_move_to_where_it_acts_is_one_action():
    both = QwenComputerUse(several="all")
    move = {"action": "mouse_move", "coordinate": [1, 2]}
    drag = {"action": "left_click_drag", "coordinate": [3, 4]}
    assert both.read(qwen(move) + qwen(drag), VIEW).actions == (actions.Drag(1, 2, 3, 4),)
    assert QwenComputerUse().read(qwen(move) + qwen(drag), VIEW).actions == (actions.Drag(1, 2, 3, 4),)
    click = {"action": "left_click", "coordinate": [3, 4]}
    assert both.read(qwen(move) + qwen(click), VIEW).actions == (actions.Move(1, 2), actions.Click(3, 4))
    held = fenced({"action_type": "MOVE_TO", "x": 1, "y": 2}, {"action_type": "MOUSE_DOWN"})
    assert Computer13().read(held, VIEW).actions == (actions.MouseDown(1, 2),)


def test_a_diagonal_scroll_is_two_and_relative_places_are_thousandths():
    diagonal = fenced({"action_type": "SCROLL", "dx": 1, "dy": -2})
    assert Computer13(several="all").read(diagonal, VIEW).actions == (
        actions.Scroll(7, 8, "right", 1),
        actions.Scroll(7, 8, "down", 2),
    )
    click = {"action": "left_click", "coordinate": [500, 250]}
    assert QwenComputerUse(coordinates="relative").read(qwen(click), VIEW).actions == (actions.Click(644, 182),)
    item = {"action_type": "CLICK", "x": 500, "y": 250}
    assert Computer13(coordinates="relative").read(fenced(item), VIEW).actions == (actions.Click(644, 182),)


@pytest.mark.parametrize(
    ("answer", "kinds", "action"),
    [
        (json.dumps({"action": "left_click", "coordinate": [5, 6]}), ["marker", "argument"], actions.Click(5, 6)),
        (qwen(json.dumps({"action": "wait"})), ["argument"], actions.Wait()),
        (qwen({"action": "click", "coordinate": [5, 6]}), ["name"], actions.Click(5, 6)),
        (qwen({"action": "wait"}, "computer"), ["name"], actions.Wait()),
        (qwen({"action": "left_click", "coordinate": [5, 6, 7, 8]}), ["place"], actions.Click(6, 7)),
        (qwen({"action": "left_click", "coordinate": [5000, 6]}), ["outside"], actions.Click(1287, 6)),
        (qwen({"action": "key", "keys": ["ctrl+c"]}), ["key"], actions.Hotkey(("ctrl", "c"))),
        (qwen({"action": "key", "keys": "ctrl+c"}), ["key", "key"], actions.Hotkey(("ctrl", "c"))),
        (qwen({"action": "scroll", "pixels": -500}), ["amount"], actions.Scroll(7, 8, "down", 100)),
        (qwen({"action": "terminate"}), ["argument"], actions.Finished()),
        (qwen({"action": "wait", "why": "so"}), ["argument"], actions.Wait()),
        (qwen({"action": "wait"}).removesuffix("</tool_call>"), ["cut"], actions.Wait()),
        (qwen({"action": "wait"}) + " Done.", ["text"], actions.Wait()),
        ('Click: {"action_type": "CLICK"}', ["marker", "text"], actions.Click(7, 8)),
        (fenced({"action_type": "click"}), ["name"], actions.Click(7, 8)),
        (fenced({"action": "CLICK"}), ["argument"], actions.Click(7, 8)),
        (fenced({"action_type": "CLICK", "z": 1}), ["argument"], actions.Click(7, 8)),
        (fenced({"action_type": "PRESS", "key": "ctrl+c"}), ["key"], actions.Hotkey(("ctrl", "c"))),
        (fenced({"action_type": "WAIT"}) + "\nSo be it.", ["text"], actions.Wait()),
    ],
)
def test_what_is_wrong_with_a_call_is_noted_or_refused(answer, kinds, action):
    dialect = Computer13 if "```" in answer or "action_type" in answer else QwenComputerUse
    reading = dialect(strictness="lenient").read(answer, VIEW)
    assert (reading.actions, [wrong.kind for wrong in reading.wrong]) == ((action,), kinds)
    with pytest.raises(actions.Unparsable):
        dialect().read(answer, VIEW)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{}",
        "<tool_call></tool_call>",
        "<tool_call>[1]</tool_call>",
        qwen({"action": "fly"}),
        qwen({"action": "mouse_move"}),
        qwen({"action": "left_click", "coordinate": [None, 3]}),
        qwen({"action": "left_click", "coordinate": [True, 3]}),
        qwen({"action": "left_click", "coordinate": [10**400, 3]}),
        qwen({"action": "scroll"}),
        qwen({"action": "key", "keys": []}),
        qwen({"action": "key", "keys": [""]}),
        qwen({"action": "type", "text": None}),
        qwen({"action": ["wait"]}),
        fenced({}),
        fenced({"action_type": 3}),
        fenced({"action_type": "FLY"}),
        fenced({"action_type": "MOVE_TO", "x": 1}),
        fenced({"action_type": "CLICK", "num_clicks": 4}),
        fenced({"action_type": "CLICK", "num_clicks": 1.5}),
        fenced({"action_type": "CLICK", "button": "fourth"}),
        fenced({"action_type": "SCROLL", "dx": 0, "dy": 0}),
        fenced({"action_type": "KEY_DOWN", "key": "ctrl c"}),
        fenced({"action_type": "HOTKEY", "keys": "  "}),
    ],
)
def test_calls_and_actions_without_sense_are_refused_even_leniently(answer):
    dialect = Computer13 if "```" in answer else QwenComputerUse
    with pytest.raises(actions.Unparsable):
        dialect(strictness="lenient").read(answer, VIEW)
