"""Answers of UI-TARS as the models write them, beside what the public package ``ui-tars`` reads of them.

``ui_tars_answers.json`` has the answers, what is read of each, and why that differs where it does.
"""

import pytest

from dart_streams.actions import Call, Click, Drag, Finished, Hotkey, KeyDown, KeyUp, Scroll, Type, Unparsable
from dart_streams.actions.dialects import UiTars, View
from dart_streams.actions.dialects.dialect import Strictness
from dart_streams.actions.offered import offer_call
from dart_streams.actions.sequence import format_all
from tests.unit.actions.ui_tars_peer import SEEN, load, peer_reading

CORPUS = load()
ANSWERS = CORPUS["answers"]
VIEW = View(*SEEN)
FIRST, ALL = UiTars(), UiTars(several="all")
LENIENT = UiTars(strictness="lenient", several="all")


def reading(answer: str, strictness: Strictness) -> str:
    try:
        return format_all(UiTars(strictness=strictness, several="all").read(answer, VIEW).actions)
    except Unparsable:
        return "refused"


def test_there_are_enough_answers_of_which_no_two_are_equal():
    assert len({entry["answer"] for entry in ANSWERS}) == len(ANSWERS) >= 200


@pytest.mark.parametrize("entry", ANSWERS, ids=lambda entry: repr(entry["answer"][-60:]))
def test_an_answer_is_read_as_it_is_listed(entry):
    assert reading(entry["answer"], "strict") == entry["strict"]
    assert reading(entry["answer"], "lenient") == entry.get("lenient", entry["strict"])


def test_each_difference_from_the_package_has_a_reason():
    def differs(entry) -> bool:
        return entry["peer"] != entry["strict"] or entry["peer"] != entry.get("lenient", entry["strict"])

    assert [entry["answer"] for entry in ANSWERS if differs(entry) != ("why" in entry)] == []
    assert {entry["why"] for entry in ANSWERS if "why" in entry} == set(CORPUS["reasons"])


def test_the_package_reads_what_is_listed_as_its_reading():
    pytest.importorskip("ui_tars", reason="ui-tars is not installed in this environment: make dev")
    assert [e["answer"] for e in ANSWERS if peer_reading(e["answer"]) != e["peer"]] == []


def test_whatever_the_strict_reader_accepts_the_lenient_one_reads_alike():
    for entry in ANSWERS:
        if entry["strict"] != "refused":
            found = LENIENT.read(entry["answer"], VIEW)
            assert (format_all(found.actions), found.wrong) == (entry["strict"], ())


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        ("Action: click(start_box='(5000,2)')", ["outside"]),
        ("click(start_box='(1,2)')", ["marker"]),
        ("Look!\nAction: Click(start_box=(1,2), speed='3') Done.", ["text", "name", "quotes", "text", "argument"]),
        ("Action: hotkey(key='ctrl-c'", ["cut", "key"]),
        ("Action: scroll(direction='up', amount='5000')", ["amount"]),
        ("Action: click(start_box='1 2')", ["place"]),
    ],
)
def test_what_was_wrong_is_noted_by_kind(answer, kinds):
    assert [wrong.kind for wrong in LENIENT.read(answer, VIEW).wrong] == kinds
    with pytest.raises(Unparsable) as refusal:
        ALL.read(answer, VIEW)
    assert refusal.value.kind == kinds[0]


def test_of_several_actions_the_first_is_taken_or_all():
    answer = "Action: press(key='shift')\n\nclick(start_box='(5,6)')\n\nrelease(key='shift')"
    assert ALL.read(answer, VIEW).actions == (KeyDown("shift"), Click(5, 6), KeyUp("shift"))
    first = FIRST.read(answer, VIEW)
    assert first.actions == (KeyDown("shift"),)
    assert [wrong.kind for wrong in first.wrong] == ["several"]


@pytest.mark.parametrize(
    ("coordinates", "written", "place"),
    [
        ("absolute", "(962,546)", (962, 546)),
        ("relative", "(498,500)", (962, 546)),
        ("relative", "(1000,1000)", (1931, 1091)),
        ("relative", "(0,0)", (0, 0)),
    ],
)
def test_places_are_pixels_of_the_image_or_thousandths_of_it(coordinates, written, place):
    dialect = UiTars(coordinates=coordinates)
    assert dialect.read(f"Action: click(start_box='{written}')", VIEW).actions == (Click(*place),)
    with pytest.raises(Unparsable, match="not in the image"):
        UiTars(coordinates="relative").read("Action: click(start_box='(1001,500)')", VIEW)


def test_a_scroll_without_a_place_is_where_the_pointer_is():
    answer = "Action: scroll(direction='down')"
    assert ALL.read(answer, VIEW).actions == (Scroll(966, 546, "down"),)
    assert ALL.read(answer, View(*SEEN, pointer=(3, 4))).actions == (Scroll(3, 4, "down"),)
    moved = "Action: drag(start_box='(1,2)', end_box='(7,8)')\n\nscroll(direction='down')"
    assert ALL.read(moved, VIEW).actions == (Drag(1, 2, 7, 8), Scroll(7, 8, "down"))


@pytest.mark.parametrize(
    "content", ["print('a')\nwait()\nprint('b')", "f(')')\n\nclick me", "')", "a')\nb", "it's (not 'that')"]
)
def test_a_text_may_look_like_the_end_of_a_call(content):
    assert ALL.read(f"Thought: x\nAction: type(content='{content}')", VIEW).actions == (Type(content),)


APPS = (offer_call("open_app", "", {"type": "object"}), offer_call("set_text", "", {"type": "object"}))


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("long_press(point='<point>5 6</point>')", Click(5, 6, "right")),
        ("open_app(app_name='Clock')", Call("open_app", {"app_name": "Clock"})),
        ("press_home()", Hotkey(("home",))),
        ("press_back()", Hotkey(("back",))),
        ("click(point='<point>5 6</point>')", Click(5, 6)),
        (r"type(content='a\n')", Type("a\n")),
        ("scroll(point='<point>5 6</point>', direction='down')", Scroll(5, 6, "down")),
        ("drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')", Drag(1, 2, 3, 4)),
        ("finished(content='4')", Finished("4")),
        (r"""call(name='set_text', arguments='{"text":"b"}')""", Call("set_text", {"text": "b"})),
    ],
)
def test_actions_of_a_phone_are_read_and_written_by_its_prompt(answer, action):
    mobile = UiTars(prompt="mobile")
    assert mobile.read(f"Thought: x\nAction: {answer}", VIEW, APPS).actions == (action,)
    assert mobile.write(action, VIEW) == f"Action: {answer}"
    assert mobile.read(mobile.write(action, VIEW), VIEW, APPS).actions == (action,)


def test_actions_of_a_phone_need_its_prompt_which_lists_its_functions():
    with pytest.raises(Unparsable, match="unknown action 'long_press'"):
        FIRST.read("Action: long_press(point='<point>5 6</point>')", VIEW)
    with pytest.raises(Unparsable, match="unknown function 'open_app'"):
        UiTars(prompt="mobile").read("Action: open_app(app_name='Clock')", VIEW)
    assert FIRST.write(Click(5, 6, "right"), VIEW) == "Action: right_single(point='<point>5 6</point>')"
    [_, (_, alone)] = UiTars(prompt="mobile").system_messages("Go.", VIEW)
    [_, (_, text)] = UiTars(prompt="mobile").system_messages("Go.", VIEW, APPS)
    assert "- set_text(" in text and "- open_app(" not in text
    assert UiTars(prompt="mobile").system_messages("Go.", VIEW, APPS[:1])[1][1] == alone


def test_actions_are_written_with_points_or_boxes():
    click, drag = Click(5, 6), Drag(1, 2, 3, 4)
    box = UiTars(prompt="box")
    assert FIRST.write(click, VIEW) == "Action: click(point='<point>5 6</point>')"
    assert FIRST.write(drag, VIEW) == "Action: drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')"
    assert box.write(click, VIEW) == "Action: click(start_box='<|box_start|>(5,6)<|box_end|>')"
    text = Type("start_box='(1,2)'")
    assert box.read(box.write(text, VIEW), VIEW).actions == (text,)
    assert FIRST.read(FIRST.write(text, VIEW), VIEW).actions == (text,)


def test_earlier_answers_get_back_the_tokens_that_decoding_left_out():
    box = UiTars(prompt="box")
    with_tokens = "Thought: x\nAction: click(start_box='<|box_start|>(5,6)<|box_end|>')"
    assert box.history_text("Thought: x\nAction: click(start_box='(5,6)')") == with_tokens
    assert box.history_text(with_tokens) == with_tokens
    assert FIRST.history_text("Action: wait()") == "Action: wait()"
    assert box.read(with_tokens, VIEW).actions == (Click(5, 6),)


def test_a_combination_is_apart_by_blanks_or_plus():
    for written, keys in (("ctrl c", "ctrl c"), ("ctrl+c", "ctrl c"), ("ctrl++", "ctrl +"), ("+", "+")):
        assert ALL.read(f"Action: hotkey(key='{written}')", VIEW).actions == (Hotkey(tuple(keys.split())),)
