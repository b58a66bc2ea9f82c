"""Search of the page: words of tasks and outcomes, and texts of instructions, answers and actions."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs.bundle import Bundle, BundleRecord
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from console.views.page import search
from console.views.page.records import newest_records
from console.views.page.source import SHOWN
from tests.integration.recorded_run import record, settings
from topics.observations import Observation


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return Bundle(record(tmp_path_factory.mktemp("search") / "run.dart", 10, settings(step_ms=1)))


@pytest.fixture(scope="module")
def state(bundle: Bundle) -> RunState:
    return RunState(keep_steps=True).fold(read_log(bundle, SHOWN))


def test_words_find_trajectories_and_a_damaged_record_is_passed_over(state: RunState):
    known = next(iter(state.trajectories.values()))
    found = search.search_run(f"{known.outcome.upper()} {known.task_id}", state, ())
    assert known.trajectory_id in {row.trajectory_id for row in found.trajectories}
    assert {(row.outcome, row.task_id) for row in found.trajectories} == {(known.outcome, known.task_id)}
    assert search.search_run("no-such-word", state, ()).matching == 0
    assert list(search.text_matches("x", [BundleRecord(0, 0, 0, b"k", b"{x", [])])) == []


def test_texts_are_found_once_an_instruction_and_with_their_step(bundle: Bundle):
    records = list(bundle.records("observations"))
    events = [msgspec.json.decode(record.value or b"", type=Observation) for record in records]
    query = events[0].instruction[:12].upper()
    matching = newest_records(records, search.needle_of(query), 200)
    found = list(search.text_matches(query, matching))
    instructions = [one.trajectory_id for one in found if one.place == "instruction"]
    wanted = {event.trajectory_id for event in events if query.lower() in event.instruction.lower()}
    assert sorted(instructions) == sorted(wanted)
    taken = next(event for event in events if event.taken is not None)
    assert taken.taken is not None
    answers = list(search.text_matches(taken.taken.text, records))
    assert (taken.trajectory_id, taken.step - 1, "answer") in {
        (one.trajectory_id, one.step, one.place) for one in answers
    }


@given(st.text(max_size=300), st.text(min_size=1, max_size=8))
def test_an_excerpt_contains_the_text_and_little_more(text: str, query: str):
    excerpt = search.cut_excerpt(text, query)
    assert bool(excerpt) == (query.lower() in text.lower())
    assert len(excerpt) <= 2 * search.EXCERPT + len(query) + 2


@given(st.text(min_size=1, max_size=20))
def test_a_query_is_found_in_the_bytes_of_its_record(query: str):
    record = BundleRecord(0, 0, 0, b"k", msgspec.json.encode({"text": f"a{query}b"}), [])
    assert newest_records([record], search.needle_of(query), 5) == [record]
