"""Which answers of a run are compared with which version, and what counts as a difference."""

import asyncio
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from console.bundles.bundle_inputs import TASKS, tasks_of
from console.bundles.recorded_answers import (
    TOLERANCE_NATS,
    Part,
    VersionComparison,
    difference_of,
    published_versions,
    read_answers,
)
from console.bundles.republish import TimeSpan
from console.launch import request_replay
from console.launch.request_replay import GONE, UNKNOWN, ShadowWorker, choose_versions, shadow_config
from console.runs.bundle import Bundle, BundleError, BundleRecord, Manifest, Writer
from dart_streams.config import Config, parse
from dart_streams.errors import UserError
from dart_streams.policy import recipe
from tests import events
from topics import BY_NAME
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import Sampling, VersionSpan

replace = msgspec.structs.replace
LOGPROBS = [-1.0, -2.0, -0.5]


def asked(step: int, attempt: int = 0, **changes: Any) -> ActionRequest:
    return events.action_request(f"t/{step}/{attempt}", step=step, **changes)


def answered(step: int, *versions: int, attempt: int = 0, **changes: Any) -> ActionResponse:
    """Return an answer of three tokens, the last of the second version if there are two."""
    cuts = {0: [0], 1: [0, 3], 2: [0, 2, 3]}[len(versions)]
    spans = [VersionSpan(version=v, start=a, end=b) for v, (a, b) in zip(versions, pairwise(cuts), strict=True)]
    fields = {"tokens": [step, 7, 9], "logprobs": LOGPROBS, "entropies": [1.0] * 3, "versions": spans}
    return events.action_response(request_id=f"t/{step}/{attempt}", step=step, prompt_sha="b", **(fields | changes))


def engine(name: str) -> Config:
    return parse({"rollout": {"engine": name}})


def write(path: Path, **topics: list[Any]) -> Bundle:
    with Writer(path, Manifest(run="r", prefix="dart.r.", captured_ms=1, schemas={})) as writer:
        for name, found in topics.items():
            topic = BY_NAME[name.replace("_", "-")]
            values = [event if isinstance(event, bytes) else msgspec.json.encode(event) for event in found]
            records = [BundleRecord(0, at, 100 + at, b"k", value, []) for at, value in enumerate(values)]
            writer.records(topic.name, records)
    return Bundle(path)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    person = events.action_response("click(1,2)", request_id="t/9/person")
    return write(
        tmp_path / "run.dart",
        action_requests=[asked(0), asked(1), b"{", asked(1, 1), asked(2), asked(3), asked(4), asked(4)],
        actions=[
            answered(0, 3),
            answered(1, 3, attempt=1),
            person,
            replace(person, request_id="t/2/0", alive=True),
            answered(2, 3, 4),
            answered(3, error="the context is full", tokens=[], versions=[]),
            answered(4, 4),
            answered(4, 5),
        ],
        weights=[events.weight_version(number, sha256=f"{number}" * 64) for number in (3, 4)],
    )


def test_each_request_is_compared_with_each_version_that_answered_it(bundle: Bundle):
    found = read_answers(bundle, TimeSpan())
    places = {
        v: [(one.request.request_id, one.span.start, one.span.end) for one in parts] for v, parts in found.parts.items()
    }
    assert places == {3: [("t/0/0", 0, 3), ("t/1/1", 0, 3), ("t/2/0", 0, 2)], 4: [("t/2/0", 2, 3), ("t/4/0", 0, 3)]}
    assert found.requests == 6
    assert found.left_out == {
        "no answer: past its deadline, or under way at the capture": 1,
        "answered with an error": 1,
    }
    assert [part.before for part in found.parts[3]] == [[], [[0, 7, 9]], [[0, 7, 9], [1, 7, 9]]]


def test_a_span_of_time_takes_its_requests_with_all_earlier_answers(bundle: Bundle):
    found = read_answers(bundle, TimeSpan(103, 104, timed_from=True, timed_until=True))
    assert found.requests == 1
    [[part]] = found.parts.values()
    assert (part.request.request_id, part.at_ms, part.before) == ("t/1/1", 103, [[0, 7, 9]])


def test_a_bundle_without_requests_says_so(tmp_path: Path):
    with pytest.raises(BundleError, match="has no action-requests"):
        read_answers(write(tmp_path / "other.dart", actions=[]), TimeSpan())


def test_versions_without_weights_are_left_out_and_counted(bundle: Bundle, tmp_path: Path):
    parts, published = read_answers(bundle, TimeSpan()).parts, published_versions(bundle)
    (tmp_path / "v4").mkdir()
    published = {number: replace(event, uri=str(tmp_path / f"v{number}")) for number, event in published.items()}
    config = replace(engine("vllm"), trainer=replace(engine("vllm").trainer, weights_uri=str(tmp_path)))
    served, left_out = choose_versions(parts, published, config)
    assert (list(served), left_out) == ([4], {GONE: 3})
    assert choose_versions(parts, published, engine("vllm")) == ({}, {GONE: 5}), "the folder is not this run's"
    assert choose_versions(parts, {3: published[3]}, config) == ({}, {GONE: 3, UNKNOWN: 2})
    assert list(choose_versions(parts, published, engine("scripted"))[0]) == [3, 4]


def test_a_number_that_stands_for_two_files_is_no_version(tmp_path: Path):
    twice = [events.weight_version(1, sha256=digit * 64, epoch=epoch) for epoch, digit in enumerate("ab")]
    again = [events.weight_version(2, groups_consumed=groups) for groups in range(2)]
    assert list(published_versions(write(tmp_path / "run.dart", weights=[*twice, *again]))) == [2]


def part(request: ActionRequest, answer: ActionResponse, place: int = 0, at_ms: int = 0) -> Part:
    return Part(at_ms, request, answer, [], answer.versions[place])


DRAWN = part(asked(1), answered(1, 3))
GREEDY = part(asked(1, sampling=Sampling(temperature=0.0)), answered(1, 3))
SECOND = part(asked(1, sampling=Sampling(temperature=0.0)), answered(1, 3, 4), 1)


def test_only_greedy_answers_of_one_version_are_generated_anew():
    assert [one.generated for one in (DRAWN, GREEDY, SECOND)] == [False, True, False]
    assert [one.asked([[5]]).recorded.tokens for one in (DRAWN, GREEDY, SECOND)] == [[1, 7, 9], [], [1, 7, 9]]
    assert DRAWN.asked([[5]]).recorded.before == [[5]]
    assert DRAWN.asked([[5]]).recorded.request_id == "t/1/0"


@pytest.mark.parametrize(
    ("compared", "changes", "what"),
    [
        (DRAWN, {}, None),
        (DRAWN, {"logprobs": [LOGPROBS[0] + TOLERANCE_NATS / 2, *LOGPROBS[1:]]}, None),
        (DRAWN, {"logprobs": [LOGPROBS[0], -2.1, -9.0]}, ("log-probability", 1)),
        (DRAWN, {"logprobs": [float("nan"), *LOGPROBS[1:]]}, ("log-probability", 0)),
        (DRAWN, {"prompt_sha": "c"}, ("prompt", None)),
        (DRAWN, {"error": "no such screenshot"}, ("error", None)),
        (DRAWN, {"versions": [VersionSpan(version=4, start=0, end=3)]}, ("version", None)),
        (GREEDY, {"tokens": [1, 8, 9]}, ("tokens", 1)),
        (GREEDY, {"tokens": [1, 7]}, ("tokens", 2)),
        (SECOND, {"versions": [VersionSpan(version=4, start=0, end=3)]}, None),
        (SECOND, {"versions": [VersionSpan(version=4, start=0, end=3)], "logprobs": [-9.0, -9.0, -0.5]}, None),
    ],
)
def test_a_difference_is_named_with_its_place(compared: Part, changes: dict[str, Any], what: tuple[str, int] | None):
    found = difference_of(compared, replace(compared.answer, **changes))
    assert (found and (found.what, found.token)) == what
    if found:
        assert (found.request_id, found.trajectory_id, found.step, found.version) == ("t/1/0", "t", 1, 3)


def test_the_first_difference_is_that_of_the_earliest_request():
    counts = VersionComparison(version=3)
    for at_ms, text in ((30, "late"), (10, "early"), (20, "between")):
        counts.add(part(asked(at_ms), answered(at_ms, 3), at_ms=at_ms), answered(at_ms, 3, error=text))
    counts.add(DRAWN, replace(DRAWN.answer, logprobs=[-1.0, -2.25, -0.5]))
    assert (counts.answers, counts.different, counts.tokens, counts.max_nats) == (4, 4, 12, 0.25)
    assert counts.difference is not None
    assert counts.difference.what == "log-probability", "its request is of time 0"


def test_a_worker_takes_the_tiny_policy_of_an_attached_run(tmp_path: Path):
    config = parse({"run": {"state_dir": str(tmp_path / "state")}})
    with Writer(tmp_path / "r.dart", Manifest(run="r", prefix="dart.r.", captured_ms=1, schemas={})) as writer:
        writer.text(TASKS, (recipe.ROOT / "deploy/config/tasks.toml").read_text())
    recorded = Bundle(tmp_path / "r.dart")
    policy = recipe.tiny_policy_folder(config, tasks_of(recorded))
    assert shadow_config(recorded, config, tmp_path).policy.path == str(policy)


def test_a_bundle_names_no_service_and_no_place_of_weights():
    theirs = {"servers": "theirs.example:9092", "login": {"user": "u", "password": "env:THEIRS"}}
    openai = {"base_url": "https://theirs.example", "model": "m", "api_key": "env:THEIRS"}
    tables = {"bus": theirs, "store": {"hosts": ["theirs"]}, "rollout": {"openai": openai, "engine": "openai"}}
    place = {"trainer": {"weights_uri": "s3://theirs"}, "run": {"state_dir": "/theirs", "minutes": 0}}
    ours = {"engine": "openai", "openai": {"base_url": "https://ours.example", "model": "m"}}
    with pytest.raises(UserError, match="name a --config with it"):
        request_replay.deployed_here(parse(tables | place), parse({}))
    found = request_replay.deployed_here(parse(tables | place), parse({"rollout": ours, "run": {"minutes": 0}}))
    assert "theirs" not in str(found).lower()


def test_a_version_whose_weights_a_live_run_removes_is_not_awaited(tmp_path: Path):
    async def serve_removed() -> bool:
        gave_up = asyncio.get_running_loop().create_future()
        kafka: Any = SimpleNamespace(serving={}, next_change=asyncio.Event, publish=AsyncMock(), gave_up=gave_up)
        worker = ShadowWorker(engine("vllm"), kafka, kafka, kafka, kafka)
        return await worker.serve(events.weight_version(1, uri=str(tmp_path / "removed")))

    assert not asyncio.run(serve_removed())
