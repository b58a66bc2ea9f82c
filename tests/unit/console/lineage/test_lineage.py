"""The chain from a trained step to its screenshot is followed link by link, and an id is walked both ways."""

import json

import msgspec
import pytest

import topics
from console.lineage import traces
from console.lineage.lineage import Lineage
from console.lineage.traces import Timeline, id_of
from console.repair.dead_letters import DeadLetter
from console.runs.bundle import BundleRecord
from console.runs.run_log import LogRecord, RecordMetadata, log_record
from console.runs.run_state import RunState
from console.views.explanations import Explanations
from dart_streams.bus.codec import encode
from dart_streams.config import parse
from dart_streams.errors import UserError
from dart_streams.telemetry import names, spans
from tests import events
from topics.curation_log import Applied, Source
from topics.observations import EpisodeEnd, Observation
from topics.task_verdicts import TaskVerdict
from topics.trained import TrainedStep
from topics.values import BlobRef, VersionSpan

RUN, TRAJECTORY, GROUP = "run", "0190-t", "g000007"
SHA = "ab" * 32
ORDER = events.rollout_order(f"{GROUP}/0/0", group_id=GROUP)


def observation(step: int) -> Observation:
    taken = events.executed_action(
        "click",
        request_id=f"{TRAJECTORY}/{step - 1}/0",
        tokens=[1, 2],
        logprobs=[-0.5, -0.25],
        entropies=[0.1, 0.2],
        versions=[VersionSpan(version=0, start=0, end=2)],
    )
    return events.observation(
        step,
        trajectory_id=TRAJECTORY,
        order=ORDER,
        screenshot=BlobRef(sha256=SHA if step == 0 else f"{step:064x}", size=3),
        taken=taken if step else None,
        end=EpisodeEnd(kind="success", reward=1.0) if step == 2 else None,
    )


def records() -> list[LogRecord]:
    member = events.member(TRAJECTORY, selected=[0, 1])
    finish = events.trajectory(TRAJECTORY, order_id=ORDER.order_id, group_id=GROUP, task_id=ORDER.task_id)
    step = events.trained_step(4, version=5, group_ids=[GROUP], trajectory_ids=[TRAJECTORY], metrics={"loss": 0.5})
    version = events.weight_version(5, train_step=4)
    group = events.curated_group(GROUP, member, task_id=ORDER.task_id)
    return [
        *(kept(topics.observations.TOPIC, observation(step)) for step in range(3)),
        kept(topics.trajectories.TOPIC, finish),
        kept(topics.curated.TOPIC, group),
        kept(topics.trained.TOPIC, step),
        kept(topics.weights.TOPIC, version),
    ]


def kept(topic: topics.Topic, event) -> LogRecord:
    record = encode(topic, event)
    return log_record(topic.name, BundleRecord(0, 0, 0, record.key, record.value, list(record.headers)))


def line(name: str, identity: str, links=(), start: float = 0, end: float = 1, **attributes) -> dict:
    trace, _, span = identity.partition(":")
    named = {getattr(names, key): value for key, value in attributes.items()}
    times = {"start_ms": start, "end_ms": end}
    parent = None if name in (names.SPAN_TRAIN_STEP, names.SPAN_GROUP, names.SPAN_TRAJECTORY) else "a"
    ids = {"trace": trace, "span": span, "parent": parent if span != "a" else None}
    return {"process": "p", "name": name, **ids, "attributes": named, "links": links} | times


TOP, SPAN_OF_GROUP, OWN = (
    id_of(context)
    for context in (spans.train_step_span(RUN, 5), spans.group_span(RUN, GROUP), spans.trajectory_span(TRAJECTORY))
)


def lines() -> list[dict]:
    whose = {"ATTR_TRAJECTORY": TRAJECTORY}
    made = [
        line(names.SPAN_TRAIN_STEP, TOP, [SPAN_OF_GROUP]),
        line(names.SPAN_GROUP, SPAN_OF_GROUP, [OWN]),
        line(names.SPAN_TRAJECTORY, OWN, **whose),
    ]
    for index in range(2):
        request = f"{TRAJECTORY}/{index}/0"
        parts = {"ATTR_QUEUE_MS": 2.0, "ATTR_PREFILL_MS": 13.0, "ATTR_DECODE_MS": 5.0}
        made += [
            line(names.SPAN_STEP, f"{index}:a", [OWN], 0, 50, ATTR_STEP=index, **whose),
            line(names.SPAN_REQUEST, f"{index}:b", [], 1, 31, ATTR_REQUEST=request, **whose),
            line(names.SPAN_GENERATE, f"{index}:c", [], 6, 28, **parts),
            line(names.SPAN_EXECUTE, f"{index}:d", [], 31, 40 + index),
            line(names.SPAN_RECORD, f"{index}:e", [], 42, 44, ATTR_STEP=index + 1, **whose),
        ]
    return made


def timeline(made: list[dict]) -> Timeline:
    return Timeline(json.dumps(one).encode() for one in made)


@pytest.fixture
def state() -> RunState:
    return RunState(keep_steps=True).fold(records())


def test_a_whole_chain_counts_every_selected_step(state: RunState):
    found = traces.measure_coverage(state, timeline(lines()), RUN)
    assert (found.trained_steps, found.traced_steps, found.coverage, found.broken) == (2, 2, 1.0, {})


@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        (names.SPAN_TRAIN_STEP, 2),
        (names.SPAN_GROUP, 2),
        (names.SPAN_TRAJECTORY, 2),
        (names.SPAN_STEP, 1),
        (names.SPAN_RECORD, 1),
    ],
)
@pytest.mark.parametrize("how", ["span", "link"])
def test_one_broken_link_is_counted_and_named(state: RunState, missing: str, lost: int, how: str):
    made = lines()
    last = max(index for index, one in enumerate(made) if one["name"] == missing)
    if how == "span":
        del made[last]
    elif missing in (names.SPAN_TRAIN_STEP, names.SPAN_RECORD):
        pytest.skip("nothing links it")
    else:
        above = {names.SPAN_GROUP: names.SPAN_TRAIN_STEP, names.SPAN_TRAJECTORY: names.SPAN_GROUP}
        linking = above.get(missing, missing)
        at = max(index for index, one in enumerate(made) if one["name"] == linking)
        made[at] = {**made[at], "links": []}
    found = traces.measure_coverage(state, timeline(made), RUN)
    assert (found.trained_steps, found.traced_steps, found.broken) == (2, 2 - lost, {missing: lost})
    assert found.coverage == (2 - lost) / 2
    assert missing in found.examples[0]


def test_a_screenshot_or_a_group_that_the_log_lost_breaks_the_chain():
    bare = RunState(keep_steps=True).fold(
        record for record in records() if record.metadata.topic != topics.curated.TOPIC.name
    )
    assert traces.measure_coverage(bare, timeline(lines()), RUN).broken == {"the group in the log": 1}
    blind = RunState(keep_steps=True).fold(record for record in records() if b'"step":0' not in record.value)
    assert traces.measure_coverage(blind, timeline(lines()), RUN).broken == {"screenshot": 1}


def test_the_way_of_a_request_adds_up_and_the_slowest_names_its_worst_part(state: RunState):
    made = timeline(lines())
    found = {part.name: part.ms for part in traces.request_segments(made.below(made.steps[TRAJECTORY, 1]))}
    assert found == {
        "to the rollout worker": 5.0,
        "queue": 2.0,
        "screenshots": 0.0,
        "prefill": 13.0,
        "decode": 5.0,
        "publish the reply": 2.0,
        "reply to the env worker": 3.0,
        "execute": 10.0,
        "observation to the recorder": 1.0,
        "write to the store": 2.0,
    }
    one = next(span for span in made.by_id.values() if span.name == names.SPAN_GENERATE)
    made._add(msgspec.structs.replace(one, span="again", start_ms=one.start_ms + 500, end_ms=one.end_ms + 500))
    [row] = traces.slowest_requests(made, 1)
    shown_ms = Lineage(state, made, RUN).step(TRAJECTORY, 1).ms
    assert (row.most, row.most_ms, row.total_ms, shown_ms) == ("prefill", 13.0, 50.0, 50.0)


def test_an_optimizer_step_leads_to_tokens_a_screenshot_and_its_version(state: RunState):
    walk = Lineage(state, timeline(lines()), RUN)
    down = walk.of("4")
    request = down.made_of[0].made_of[0].made_of[0]
    assert (request.id, request.fields["screenshot"]) == (f"{TRAJECTORY}/0/0", SHA)
    assert (request.fields["tokens"], request.fields["logprobs"]) == ([1, 2], [-0.5, -0.25])
    assert request.fields["env_host"] == "env-0"
    up = walk.of(SHA[:12])
    trajectory = up.went_into[0].went_into[0]
    step = trajectory.went_into[0].went_into[0]
    assert [trajectory.id, trajectory.went_into[0].id, step.id, step.went_into[0].id] == [TRAJECTORY, GROUP, "4", "v5"]


@pytest.mark.parametrize("identity", [f"{TRAJECTORY}/1/0", TRAJECTORY, GROUP, "4", "v5", SHA])
def test_every_kind_of_id_is_found(state: RunState, identity: str):
    assert Lineage(state, timeline([]), RUN).of(identity).id == identity


@pytest.mark.parametrize("identity", ["5", "v9", "g000008", f"{TRAJECTORY}/7/0", "abab", "nonsense"])
def test_an_unknown_id_is_refused_with_the_form_of_ids(state: RunState, identity: str):
    with pytest.raises(UserError, match=r"nothing called .*Ids: a request"):
        Lineage(state, timeline([]), RUN).of(identity)


def imitated_later() -> RunState:
    """A run with two more steps: one imitates the trajectory beside its batch, one in a supervised phase."""
    common = {"epoch": 1, "group_ids": [], "trajectory_ids": [], "metrics": {}, "at_ms": 10}
    beside = TrainedStep(train_step=5, version=6, imitated=[TRAJECTORY], **common)
    phase = TrainedStep(train_step=6, version=7, sft_updates=[["another"], [TRAJECTORY]], **common)
    return RunState(keep_steps=True).fold(
        [*records(), kept(topics.trained.TOPIC, beside), kept(topics.trained.TOPIC, phase)]
    )


def test_imitated_trajectories_are_followed_both_ways_and_break_no_chain():
    """A step's chains are those of its batch: an imitated trajectory's own is that of the step that took it first."""
    lineage = Lineage(imitated_later(), timeline([]), RUN)
    [node] = lineage.train_step(5).made_of
    assert (node.kind, node.id, node.fields["reward"]) == ("imitated", TRAJECTORY, 1.0)
    assert [node.id for node in lineage.train_step(6).made_of] == ["another", TRAJECTORY]
    went_into = lineage.trajectory(TRAJECTORY, up=True).went_into
    assert [(node.kind, node.id) for node in went_into] == [("group", GROUP), ("train step", "5"), ("train step", "6")]
    assert [node.fields.get("imitated") for node in went_into] == [None, True, True]
    assert traces.measure_coverage(imitated_later(), timeline(lines()), RUN).trained_steps == 2


TASK = ORDER.task_id
OTHER = "g000009"


def explained(*further: LogRecord, letters=lambda _: (), lost=lambda: None, spans_made=()) -> Explanations:
    """Explain by the run above, which has dispatch's log, and by further records."""
    known = RunState(keep_steps=True).fold([*records(), *further])
    return Explanations(Lineage(known, timeline(list(spans_made)), RUN), parse({}), letters, lost)


def ordered(group_id: str, samples: int = 2) -> list[LogRecord]:
    """Return the orders of a group, and dispatch's entry for them."""
    orders = [
        events.rollout_order(
            f"{group_id}/{sample}/0", group_id=group_id, sample=sample, group_size=samples, task_id=TASK
        )
        for sample in range(samples)
    ]
    names_of = [order.order_id for order in orders]
    source = Source(topic="weights", partition=0, offset=0)
    entry = Applied(agent="dispatch", source=source, decisions=names_of, state_digest="0" * 64)
    return [*(kept(topics.rollout_orders.TOPIC, order) for order in orders), kept(topics.curation_log.TOPIC, entry)]


def finishes(group_id: str, *rewards: float, size: int = 2) -> list[LogRecord]:
    return [
        kept(
            topics.trajectories.TOPIC,
            events.trajectory(
                f"{group_id}-t{sample}",
                order_id=f"{group_id}/{sample}/0",
                group_id=group_id,
                group_size=size,
                task_id=TASK,
                reward=reward,
                outcome="success" if reward else "failure",
            ),
        )._replace(metadata=RecordMetadata("trajectories", 2, 40 + sample, 0))
        for sample, reward in enumerate(rewards)
    ]


def test_a_dropped_group_says_why_and_its_trajectories_lead_to_it():
    node = explained(*ordered(OTHER), *finishes(OTHER, 1.0, 1.0)).of(OTHER)
    assert node.fields["fate"] == "dropped: all rewards equal"
    assert node.fields["decided_by"] == {"agent": "groups", "trajectory": f"{OTHER}-t1", "at": "trajectories[2]@41"}
    assert [(one.id, one.fields["reward"]) for one in node.made_of] == [(f"{OTHER}-t0", 1.0), (f"{OTHER}-t1", 1.0)]
    seen = events.observation(0, trajectory_id=f"{OTHER}-t0", order=ORDER)
    node = explained(*ordered(OTHER), kept(topics.observations.TOPIC, seen), *finishes(OTHER, 1.0, 1.0)).of(
        f"{OTHER}-t0"
    )
    assert [(one.id, one.fields["fate"], one.made_of) for one in node.went_into] == [
        (OTHER, "dropped: all rewards equal", [])
    ]


def test_a_group_under_way_says_what_it_waits_for():
    node = explained(*ordered(OTHER), *finishes(OTHER, 1.0)).of(OTHER)
    assert (node.fields["fate"], node.fields["waiting"]) == ("under way", 1)
    assert "decided_by" not in node.fields
    assert [one.fields["state"] for one in node.made_of] == ["success", "ordered"]


@pytest.mark.parametrize(
    ("further", "lost", "became"),
    [
        ([], None, "not begun"),
        ([], [f"{OTHER}/1/0"], "lost"),
        (["begin"], None, "running: step 0"),
        (["begin", "end"], None, "ended"),
        (["finish"], [f"{OTHER}/1/0"], "finished: failure"),
    ],
)
def test_an_order_says_what_became_of_it(further: list[str], lost, became: str):
    order = events.rollout_order(f"{OTHER}/1/0", group_id=OTHER, sample=1, group_size=2, task_id=TASK)
    first = events.observation(0, trajectory_id="begun", order=order)
    last = msgspec.structs.replace(first, step=1, end=EpisodeEnd(kind="failure", reward=0.0))
    made = {
        "begin": [kept(topics.observations.TOPIC, first)],
        "end": [kept(topics.observations.TOPIC, last)],
        "finish": finishes(OTHER, 1.0, 0.0)[1:],
    }
    node = explained(*ordered(OTHER), *(one for name in further for one in made[name]), lost=lambda: lost).of(
        order.order_id
    )
    assert node.fields["became"].startswith(became)
    assert node.fields["ordered_by"] == "the dispatch agent, within its group"


def timed_out(reason: str) -> LogRecord:
    order = events.rollout_order(f"{OTHER}/1/0", group_id=OTHER)
    last = events.observation(1, trajectory_id="late", order=order)
    return kept(
        topics.observations.TOPIC,
        msgspec.structs.replace(last, taken=None, end=EpisodeEnd(kind="policy_error", reward=None, reason=reason)),
    )


def test_a_request_that_timed_out_says_how_the_episode_ended():
    reason = "3 attempts, the last: late/0/2: no reply within 5 s"
    failed = line(names.SPAN_REQUEST, "9:b", ATTR_REQUEST="late/0/1") | {"failure": "late/0/1: no reply within 5 s"}
    explanations = explained(timed_out(reason), spans_made=[failed])
    for attempt in range(3):
        node = explanations.of(f"late/0/{attempt}")
        assert (node.fields["outcome"], node.fields["reason"]) == ("policy_error", reason)
        assert node.fields["at"] == "observations[0]@0"
        assert node.fields.get("failure", "") == ("late/0/1: no reply within 5 s" if attempt == 1 else "")
    with pytest.raises(UserError, match="nothing called"):
        explanations.of("late/0/3")


def test_a_request_of_which_a_later_attempt_was_used_names_it():
    taken = events.executed_action("click", request_id="slow/0/2")
    seen = events.observation(1, trajectory_id="slow", order=ORDER, taken=taken)
    explanations = explained(kept(topics.observations.TOPIC, seen))
    assert "slow/0/2" in explanations.of("slow/0/1").fields["became"]
    with pytest.raises(UserError, match="nothing called"):
        explanations.of("slow/0/3")


def test_a_refused_proposal_says_why_and_who_made_it():
    verdict = TaskVerdict(
        task_id="pages/broken#1",
        accepted=False,
        reason="its solution was worth 0",
        max_steps=5,
        maker="me",
        trajectory_id=TRAJECTORY,
    )
    node = explained(kept(topics.task_verdicts.TOPIC, verdict)).of(verdict.task_id)
    assert (node.fields["became"], node.fields["maker"]) == ("refused: its solution was worth 0", "me")
    assert [one.id for one in node.made_of] == [TRAJECTORY]


def test_a_dead_letter_is_found_by_what_it_names_and_asked_last():
    letter = DeadLetter(
        place="0@3", came_from="dart.r.tasks[1]@8", tries="1", at_ms="1", why="too long", key="", value="{}"
    )
    asked = []

    def letters(identity: str) -> list[DeadLetter]:
        asked.append(identity)
        return [letter] if identity == "tasks[1]@8" else []

    explanations = explained(letters=letters)
    node = explanations.of("tasks[1]@8")
    assert [(one.id, one.fields["why"], one.fields["at"]) for one in node.went_into] == [
        (letter.came_from, "too long", "0@3")
    ]
    assert explanations.of(GROUP).fields["mean"] is not None
    with pytest.raises(UserError, match=r"nothing called 'tasks\[1\]@9', nor has it a dead letter"):
        explanations.of("tasks[1]@9")
    assert asked == ["tasks[1]@8", "tasks[1]@9"]
