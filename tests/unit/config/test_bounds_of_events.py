"""No configuration is accepted whose values the contract refuses, nor a number that no program comes back from."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.cli.config import errors_in
from dart_streams.bus.codec import decode, encode
from dart_streams.config import Config, load, parse, tasks
from dart_streams.config.tables import MAX_DEPTH
from dart_streams.config.tasks import MAX_TASK_ID, MAX_TASKS, TaskFile
from dart_streams.errors import ConfigError
from tests.faults.largest_records import largest_event
from tests.unit.topics.test_bounds import leaves
from topics import rollout_orders
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import TaskDifficulty
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.values import Sampling
from topics.weights import WeightVersion

Bounds = tuple[float, float]


def number_fields(file: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the place and the type of each number and text of a file; the package of a backend checks its options."""
    for path, kind in leaves(msgspec.inspect.type_info(file)):
        if not {"key", "value"} & set(path):
            yield ".".join(str(step) for step in path if step != 0), kind


def bounds_of(struct: type[msgspec.Struct], path: str) -> Bounds:
    """Return the least and the most of a number, or of the length of a text."""
    (kind,) = (kind for place, kind in number_fields(struct) if place == path)
    if isinstance(kind, msgspec.inspect.StrType):
        return kind.min_length or 0, math.inf if kind.max_length is None else kind.max_length
    least = kind.ge if kind.ge is not None else kind.gt
    return least, kind.le


REACHES = [
    (Config, "policy.max_tokens", Sampling, "max_tokens"),
    (Config, "policy.model_id", WeightVersion, "model_id"),
    (Config, "evaluation.temperatures", Sampling, "temperature"),
    (Config, "evaluation.episodes", RolloutOrder, "group_size"),
    (Config, "evaluation.episodes", RolloutOrder, "sample"),
    (Config, "curation.budget.base", RolloutOrder, "group_size"),
    (Config, "curation.budget.base", RolloutOrder, "sample"),
    (Config, "curation.budget.base", RolloutBudget, "rollouts"),
    (Config, "run.train_steps", TrainedStep, "train_step"),
    (Config, "trainer.max_train_steps", TrainedStep, "train_step"),
    (TaskFile, "pages.max_steps", RolloutOrder, "max_steps"),
    (TaskFile, "pages.max_steps", RolloutBudget, "max_steps"),
    (TaskFile, "pages.max_steps", Trajectory, "steps"),
    (TaskFile, "pages.max_steps", TaskDifficulty, "longest_success"),
    (TaskFile, "osworld.max_steps", RolloutOrder, "max_steps"),
    (TaskFile, "pages.page", RolloutOrder, "task_id"),
    (TaskFile, "pages.environment", RolloutOrder, "task_id"),
]
"""Keys, and the fields of events that their values reach."""


@pytest.mark.parametrize(("file", "key", "event", "field"), REACHES, ids=lambda one: getattr(one, "__name__", one))
def test_a_key_has_no_value_that_a_field_which_it_reaches_refuses(
    file: type[msgspec.Struct], key: str, event: type[msgspec.Struct], field: str
):
    (least, most), (lowest, highest) = bounds_of(file, key), bounds_of(event, field)
    assert lowest <= least
    assert most <= highest


@pytest.mark.parametrize("file", [Config, TaskFile])
def test_every_number_of_a_file_is_bounded_and_finite(file: type[msgspec.Struct]):
    numbers = {path: kind for path, kind in number_fields(file) if not isinstance(kind, msgspec.inspect.StrType)}
    assert len(numbers) > 4
    endless = [path for path, kind in numbers.items() if kind.le is None or (kind.ge is None and kind.gt is None)]
    assert not endless


PAGE = {"environment": "e", "page": "p", "max_steps": 5, "train_seeds": [0, 2], "heldout_seeds": [2, 3]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_steps": 200_000}, r"pages\[0\]\.max_steps: Expected `int` <= 10000"),
        ({"max_steps": 0}, r"pages\[0\]\.max_steps: Expected `int` >= 1"),
        ({"max_steps": -5}, r"pages\[0\]\.max_steps: Expected `int` >= 1"),
        ({"train_seeds": [0, 10**9]}, rf"pages\[0\]: its seeds make 1000000001 tasks: .* {MAX_TASKS}"),
        ({"demonstration_seeds": [5, 10**18]}, r"its seeds make 999999999999999998 tasks"),
        ({"heldout_seeds": [0, 10**30]}, r"pages\[0\]\.heldout_seeds: .*out of range|Expected `int` <="),
        ({"page": "x" * 600}, r"pages\[0\]\.page: Expected `str` of length <= 480"),
        ({"page": ""}, r"pages\[0\]\.page: Expected `str` of length >= 1"),
        ({"page": "x" * 478}, r"pages\[0\]: the ids of its tasks have 482 characters"),
        ({"environment": "e" * 300, "page": "p" * 300}, r"the ids of its tasks have 603 characters"),
    ],
)
def test_a_task_that_no_event_can_carry_is_refused_with_its_key(changed: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        tasks.parse({"pages": [PAGE | changed]}, "tasks.toml")


def test_many_pages_of_many_tasks_are_refused_before_there_are_any():
    pages = [PAGE | {"page": f"p{number}", "train_seeds": [0, 90_000]} for number in range(1000)]
    with pytest.raises(ConfigError, match=r"its pages have 90001000 tasks in all"):
        tasks.parse({"pages": pages}, "tasks.toml")


def test_the_largest_task_is_ordered():
    """A demonstration's order names its task."""
    (longest,) = tasks.parse({"pages": [PAGE | {"page": "p" * 476, "max_steps": 10_000}]}, "t").heldout
    assert len(longest.task_id) == MAX_TASK_ID
    event = msgspec.structs.replace(
        largest_event("rollout-orders", Config(), longest.max_steps),
        order_id=f"demonstration-{longest.task_id}",
        task_id=longest.task_id,
    )
    record = encode(rollout_orders.TOPIC, event)
    assert decode(rollout_orders.TOPIC, record.value, record.headers) == event


@pytest.mark.parametrize(
    "tables",
    [
        *({"env": {"request_timeout_s": math.inf}}, {"env": {"episode_timeout_s": math.nan}}),
        *({"env": {"slots": 10**30}}, {"trainer": {"entropy_coef": -math.inf}}),
        *({"trainer": {"learning_rate": 10**400}}, {"curation": {"dispatch": {"seed": 2**64}}}),
        *({"evaluation": {"temperatures": [1.0, 3.0]}}, {"evaluation": {"temperatures": [0.001]}}),
        *({"evaluation": {"episodes": 100_000}}, {"policy": {"max_tokens": 0}}),
        *({"policy": {"max_tokens": 131_072}}, {"policy": {"model_id": "m" * 600}}, {"policy": {"model_id": ""}}),
        *({"run": {"train_steps": 10**12}}, {"workload": {"success": [0.0, math.inf]}}),
        *({"bus": {"prefix": "dart/run."}}, {"bus": {"prefix": "p" * 240}}, {"bus": {"prefix": "dart run."}}),
        *({"bus": {"servers": f"{scheme}://k:9092"}} for scheme in ("http", "PLAINTEXT", "SASL_SSL")),
        *({"bus": {"servers": text}} for text in ("", "k", "k:", "k:0", "a:1,,b:2", "a:1 b:2", "u:p@k:9092", "k:1/x")),
        *({"store": {"hosts": ["db", host]}} for host in ("http://db", "db:9042", "u:p@db", "", "db/x")),
        {"telemetry": {"otlp_endpoint": "collector"}},
        {"telemetry": {"otlp_endpoint": "127.0.0.1:4318"}},
        {"telemetry": {"otlp_endpoint": "http://host:99999"}},
        {"telemetry": {"otlp_endpoint": "grpc://host:4317"}},
    ],
)
def test_a_value_that_no_program_or_service_could_use_is_refused(tables: dict[str, Any]):
    with pytest.raises(ConfigError):
        parse(tables)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 3_000 + "]" * 3_000, f"is nested too deeply: tables and lists may have {MAX_DEPTH} levels"),
        (".".join("a" * 3_000) + " = 1", "is nested too deeply"),
        (f"[{'.'.join('a' * 3_000)}]", "is nested too deeply"),
        ("a = " + "{a = " * 3_000 + "1" + "}" * 3_000, "is nested too deeply"),
        ("a = " + "9" * 5_000, "is not TOML: Exceeds the limit"),
        ("[env]\nslots = " + "9" * 4_000, r"env\.slots: Expected `int` <="),
        ("[trainer]\nlearning_rate = " + "9" * 4_000, r"trainer\.learning_rate: "),
        ("a = 1e999999999", "unknown key 'a'"),
        ("a = \1", "is not TOML"),
    ],
    ids=["lists", "dotted key", "table", "inline tables", "digits", "integer", "float", "exponent", "control"],
)
def test_a_file_that_python_cannot_follow_is_an_error_and_no_traceback(tmp_path: Path, text: str, said: str):
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(file)
    assert any(said.split(":")[0].replace("\\", "") in error for error in errors_in(file))
    with pytest.raises(ConfigError):
        tasks.load(file)
