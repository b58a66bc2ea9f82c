"""Feedback as people give it, what is refused, and the rows of what learned from it."""

import pytest

from console.runs import feedback
from console.runs.run_log import LogRecord, RecordMetadata
from console.runs.run_state import RunState
from dart_streams.config import parse
from dart_streams.errors import UserError
from tests import events

ENDED = events.trajectory("t-1", task_id="t/a#1", steps=2)


def test_an_id_is_derived_from_all_that_a_feedback_says():
    first = feedback.make_correction(ENDED, 1, " click(start_box='(3,4)') ", "ann", 5, "here")
    assert (first.action, first.step, first.task_id) == ("click(start_box='(3,4)')", 1, "t/a#1")
    assert feedback.make_correction(ENDED, 1, "Action: click(start_box='(3,4)')", "ann", 5, "here") == first
    others = [
        feedback.make_correction(ENDED, 1, first.action, "ann", 6, "here"),
        feedback.make_correction(ENDED, 0, first.action, "ann", 5, "here"),
        feedback.make_correction(ENDED, 1, first.action, "bob", 5, "here"),
        feedback.make_judgement(ENDED, "good", "ann", 5, "here"),
        feedback.make_note(ENDED, "here", "ann", 5, 1),
    ]
    assert len({event.feedback_id for event in (first, *others)}) == 6


def test_a_run_without_feedback_takes_none():
    with pytest.raises(UserError, match=r"set feedback\.enabled = true"):
        feedback.refuse_disabled(parse({}))


def test_a_trajectory_is_found_by_the_beginning_of_its_id():
    known = [ENDED, events.trajectory("t-2"), events.trajectory("t-22")]
    assert feedback.find_trajectory(known, "t-1") == ENDED
    assert feedback.find_trajectory(known, "t-2").trajectory_id == "t-2"
    for name, reason in (("t-", "3 trajectories begin"), ("x", "no ended trajectory"), ("", "no ended trajectory")):
        with pytest.raises(UserError, match=reason):
            feedback.find_trajectory(known, name)


def test_rows_name_the_first_step_and_version_that_learned_from_a_feedback():
    given = [feedback.make_judgement(ENDED, "good", "ann", number, "why") for number in range(3)]
    ids = [event.feedback_id for event in given]
    groups = [
        events.curated_group(f"feedback-{name}", events.member("t-1", source="pool"), feedback=[name])
        for name in ids[:2]
    ]
    steps = [events.trained_step(number, feedback=[groups[0].group_id]) for number in (4, 5)]
    state = RunState()
    for offset, event in enumerate((*given, *groups, *steps)):
        state.fold([LogRecord(RecordMetadata("any", 0, offset, 0), event, b"")])
    rows = feedback.feedback_rows(state)
    assert [row.id for row in rows] == ids
    assert [(row.state, row.train_step, row.version) for row in rows] == [
        ("trained", 4, 4),
        ("curated", None, None),
        ("kept", None, None),
    ]
    assert {row.said for row in rows} == {"good: why"}


def test_rows_of_a_trajectory_are_those_of_its_feedback_alone():
    other = events.trajectory("t-2")
    given = [feedback.make_note(one, "x", "ann", at_ms) for at_ms, one in enumerate((ENDED, other, ENDED))]
    state = RunState().fold(LogRecord(RecordMetadata("any", 0, 0, 0), event, b"") for event in [*given, *given])
    assert [row.id for row in feedback.rows_on("t-1", state)] == [given[0].feedback_id, given[2].feedback_id]
    assert feedback.rows_on("t-9", state) == []
