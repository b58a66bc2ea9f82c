"""Groups of feedback: they take no place in a batch, are imitated beside it, and are remembered for later ones."""

import threading
from collections import Counter, deque
from types import SimpleNamespace

import msgspec
import pytest
import structlog

from benchmarks.synthetic_groups import BacklogShape, Maker
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from tests import events
from tests.unit.trainer.test_samples import LIMITS, Characters
from topics.curated import CuratedGroup
from trainer.data.batch_builder import BatchBuilder, BatchFeed
from trainer.data.consumer import Arrival, Position
from trainer.data.prefetch import Prefetcher
from trainer.data.samples import ReadyGroup, select
from trainer.data.successes import SuccessMemory
from trainer.learning.imitation import StepImitation, drop_replaced

CLICK = "click(start_box='(3,4)')"


def corrected(name: str, step: int = 0, said: str = "f") -> CuratedGroup:
    member = events.member(name, selected=[step], source="pool", version=None, corrections=[CLICK])
    return events.curated_group(f"feedback-{said}", member, feedback=[said])


def judged(name: str, source: str, said: str) -> CuratedGroup:
    member = events.member(name, selected=[0, 1], source=source, version=5 if source == "online" else None)
    return events.curated_group(f"feedback-{said}", member, feedback=[said])


def names(groups: list[ReadyGroup]) -> list[str]:
    return [ready.group.group_id for ready in groups]


def ready(group: CuratedGroup) -> ReadyGroup:
    return ReadyGroup(group=group, samples=[], images={}, refused=Counter(), read_ms=0.0)


def test_feedback_joins_the_next_batch_beside_its_groups():
    stalls = StallDetector(structlog.get_logger(), "groups", 60.0)
    builder = BatchBuilder(None, Position(), 2, 1, stalls, deque())  # type: ignore[arg-type]
    prefetcher = Prefetcher(ready)
    feed = BatchFeed(SimpleNamespace(), prefetcher, builder, threading.Event())  # type: ignore[arg-type]
    rollouts = [events.curated_group(name, events.member(name, version=5)) for name in "ab"]
    arrivals = [corrected("t"), rollouts[0], judged("u", "online", "g"), corrected("t"), rollouts[1]]
    try:
        for offset, group in enumerate(arrivals[:-1]):
            builder.admit(Arrival(0, offset, group), 5)
        assert not builder._plan(stop=False).groups, "feedback does not fill a batch"
        builder.admit(Arrival(0, 4, arrivals[-1]), 5)
        plan = builder._plan(stop=False)
        feed._gather(plan)
        batch = feed._batch(plan.position)
    finally:
        prefetcher.close()
    assert (names(batch.groups), names(batch.feedback)) == (["a", "b", "feedback-g"], ["feedback-f"])
    assert (batch.position.groups_consumed, batch.position.offsets) == (2, {0: 5})
    assert builder.beside == []


def test_the_newest_feedback_is_imitated_again_and_newer_replaces_older():
    memory = SuccessMemory().after_feedback([corrected("t", 0, "a"), corrected("t", 1, "b")], 3)
    memory = memory.after_feedback([corrected("t", 0, "c"), judged("u", "pool", "d")], 3)
    assert [group.feedback for group in memory.feedback] == [["b"], ["c"], ["d"]]
    assert memory.after_feedback([judged("u", "online", "e")], 3).feedback == memory.feedback[:2], "it is withdrawn"
    assert [group.feedback for group in memory.after_feedback([], 1).feedback] == [["d"]]
    assert memory.after_feedback([corrected("v")], 0).feedback == ()
    assert msgspec.json.decode(msgspec.json.encode(memory), type=SuccessMemory) == memory


def test_a_correction_replaces_the_earlier_one_in_the_same_step():
    earlier = (corrected("t", 0, "a"), corrected("t", 1, "b"), judged("u", "pool", "c"))
    forgotten: list[CuratedGroup] = []
    planned = StepImitation([], [], earlier)
    said = [corrected("t", 0, "d"), judged("u", "online", "e")]
    assert drop_replaced(planned, said, forgotten.append).feedback == (earlier[1],)
    assert forgotten == [earlier[0], earlier[2]]
    assert drop_replaced(planned, [], forgotten.append) == planned


@pytest.mark.parametrize(
    ("action", "fits"),
    [(CLICK, True), ("Action: wait()", True), ("push()", False), ("click(start_box='(9999,1)')", False)],
)
def test_a_corrected_step_is_a_sample_of_the_persons_answer(action: str, fits: bool):
    made = Maker(Config(), Characters(), BacklogShape(members=1, steps=2)).group(0)
    [member] = made.group.members
    changes = {"selected": [1], "source": "pool", "corrections": [action], "step_advantages": []}
    member = msgspec.structs.replace(member, **changes)
    steps = {member.trajectory_id: made.observations[member.trajectory_id]}
    own, mine = (
        select(made.group, [one], steps, Characters(), LIMITS)
        for one in (msgspec.structs.replace(member, corrections=[]), member)
    )
    if not fits:
        assert (mine.samples, mine.refused) == ([], Counter(broken_record=1))
        return
    [sample], [policy] = mine.samples, own.samples
    text = action if action.startswith("Action: ") else f"Action: {action}"
    assert sample.answer == Characters().answer_tokens(text) != policy.answer
    assert (sample.logprobs, sample.versions, sample.prompt, sample.step) == (None, [], policy.prompt, 1)
