"""Size of a deployment for a number of environments, by formulas over measured unit costs. Pure.

Every figure carries its formula, with the numbers in it, and every constant its source. ``--set`` replaces a constant
by your own measurement.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from dart_streams.config.tasks import TaskSet
from dart_streams.config.workload import Spread, Workload, typical_steps
from dart_streams.errors import UserError

DRAWS = 20_000


class Constant(msgspec.Struct, frozen=True):
    """A unit cost or another input of the plan."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


class Figure(msgspec.Struct, frozen=True):
    """A number of the plan, and its formula; ``name`` stands for it in other formulas."""

    name: str
    what: str
    needed: float
    unit: str
    formula: str


SLOTS = "docs/lab/slots.md, bench slots --slots 1000 at 314 steps/s, 22 November"
WINDOWS = "30 steps, 5 screenshots of 2,691 tokens in a sliding window; 3,900 with blocks of 3 to 7"
BLOBS = "a screenshot of 300 kB in three Cassandra nodes with three copies, 26 November"
BLOB_KB = 300.0
"""Size of the screenshot that ``blob_ms`` was measured with."""
CONSTANTS = (
    Constant("env_ms", 1.6, "core-ms/step", "measured", f"{SLOTS}; desktops elsewhere. A browser takes 15.6 more"),
    Constant("env_mb", 64.0, "MiB/slot", "assumed", "deploy/k8s/base: 1 GiB for 16 slots with a browser"),
    Constant("recorder_ms", 0.65, "core-ms/step", "measured", SLOTS),
    Constant("kafka_ms", 0.93, "core-ms/step", "measured", f"{SLOTS}; one broker, one copy"),
    Constant("cassandra_ms", 0.87, "core-ms/step", "measured", f"{SLOTS}; one node, one copy, small screenshots"),
    Constant("blob_ms", 14.5, "core-ms/copy", "measured", f"{BLOBS}: 43.6 core-ms; grows with the size"),
    Constant("disk", 1.3, "bytes/byte", "measured", f"{BLOBS}: 3.9 times the bytes"),
    Constant("curator_per_s", 1016.0, "trajectories/s", "measured", "docs/lab/curation.md, bench agents, slowest run"),
    Constant("screenshot_kb", 300.0, "kB", "assumed", "a PNG of a desktop of 1920x1080"),
    Constant("event_kb", 8.0, "kB/step", "assumed", "observation, request and answer of a step of about 100 tokens"),
    Constant("images", 5.0, "screenshots/request", "published", "history of DART's release: at most 5 images"),
    Constant("log_hours", 168.0, "h", "assumed", "hours of records on the disks; bus.topics.retention_hours"),
    Constant("run_hours", 24.0, "h", "assumed", "length of a run"),
    Constant("broker_cores", 8.0, "cores", "assumed", "of a broker"),
    Constant("store_cores", 8.0, "cores", "assumed", "of a database node"),
    Constant("copies", 3.0, "", "assumed", "replicas of a record, and of a row"),
    Constant("busy", 0.6, "", "assumed", "how busy a core may be, so that a step's overhead stays small"),
    Constant("partition_per_s", 100.0, "records/s", "assumed", "of a partition, well below what one consumer reads"),
    Constant("slots_a_host", 64.0, "slots", "assumed", "of an environment worker process"),
    Constant("places", 32.0, "requests", "assumed", "under way in a rollout worker before it is slower than modeled"),
    Constant("rollouts", 8.0, "rollouts/group", "published", "DART: 8 rollouts of a task"),
    Constant("full", 0.7, "", "assumed", "how full rollout workers may be"),
    Constant("gpus_a_worker", 2.0, "GPUs", "published", "DART's release: 2 H100 a rollout worker"),
    Constant("trainer_gpus", 8.0, "GPUs", "published", "DART's release: 8 H100 train"),
    Constant("train_tokens", 15_600.0, "tokens/step", "assumed", WINDOWS),
    Constant("tokens_per_s", 6000.0, "tokens/s", "measured", "docs/gpu.md: a GPU that trains adapters of a 7B model"),
    Constant("running", 3.4, "rollouts", "simulated", "under way a group that is open or waits (bench simulate)"),
    Constant("trained_share", 0.7, "", "simulated", "of played steps that are trained on, bench simulate"),
)


class Sizing(msgspec.Struct, frozen=True):
    """The plan for ``envs`` environments, and the constants that it uses."""

    envs: int
    figures: list[Figure]
    constants: list[Constant]


FORMULA_TABLE = """\
episode_s | episode | s | \
    reset {reset_s} + {steps} steps x (settle {settle_s} + generate {generate_s}) + evaluate {evaluate_s}
episodes_per_s | episodes | /s | {envs} environments / episode {episode_s}
steps_per_s | steps | /s | {episodes_per_s} episodes/s x {steps} steps
env_workers | env workers | processes | {envs} slots / {slots_a_host} a host
env_cores | cores of an env worker | cores | \
    {slots_a_host} slots / episode {episode_s} s x {steps} steps x {env_ms} core-ms / 1000 / {busy}
env_memory | memory of an env worker | MiB | {slots_a_host} slots x {env_mb} MiB
partitions | bus.topics.partitions | each | \
    the largest of {steps_per_s} steps/s / {partition_per_s}, {envs} slots / {slots_a_host} a host and \
    {rollout_workers} rollout workers
recorders | recorders | processes | {steps_per_s} steps/s x {recorder_ms} core-ms / 1000 / {busy}
curator_cores | curator | cores | {episodes_per_s} episodes/s / {curator_per_s} trajectories/s; one process decides
brokers | brokers |  | \
    {steps_per_s} steps/s x {kafka_ms} core-ms / 1000 x {copies} copies / {broker_cores} cores / {busy}; at least one \
    a copy
nodes | database nodes |  | \
    {steps_per_s} steps/s x ({cassandra_ms} + {blob_ms} x {screenshot_kb} kB / {blob_kb}) core-ms / 1000 x {copies} \
    copies / {store_cores} cores / {busy}; at least one a copy
events_mb_per_s | network, events | MB/s | {steps_per_s} steps/s x {event_kb} kB x ({copies} copies + 1 reader) / 1000
screenshots_mb_per_s | network, screenshots | MB/s | \
    {steps_per_s} steps/s x {screenshot_kb} kB x ({copies} copies + {images} read a request, none cached) / 1000
screenshots_written | screenshots written | MB/s | {steps_per_s} steps/s x {screenshot_kb} kB / 1000
screenshots_gb_a_day | screenshots kept a day | GB | \
    {screenshots_written} MB/s x {copies} copies x {disk} on disk x 86400 s / 1000
screenshots_gb_a_run | screenshots kept of a run | GB | \
    {screenshots_gb_a_day} GB a day x {run_hours} h / 24; `runs rm --screenshots` removes them
log_gb | disk of all brokers | GB | \
    {steps_per_s} steps/s x {event_kb} kB x {copies} copies x {log_hours} h of records
under_way | requests under way |  | {steps_per_s} steps/s x generate {generate_s} s
rollout_workers | rollout workers |  | {under_way} under way / {places} places / {full}
rollout_gpus | rollout GPUs |  | {rollout_workers} workers x {gpus_a_worker} GPUs
batch | groups a training step, at least | groups | \
    {envs} slots / {running} rollouts under way a group / staleness {staleness}
version_s | a version each | s | \
    the larger of optimizer {optimizer_s} s and episode {episode_s} s x {rollouts} rollouts / {running} under way / \
    staleness {staleness}
switching | rollout workers that switch at a time | workers | \
    2 x {rollout_workers} workers x switch {switch_s} s / {version_s} s: all have a version at half of its time
train_gpus | trainer GPUs |  | \
    {steps_per_s} steps/s x {trained_share} trained on x {train_tokens} tokens / {tokens_per_s} tokens/s, in units of \
    {trainer_gpus} GPUs
"""
"""Name, title, unit and formula of each value of the plan; names in braces stand for values."""


def with_changes(changes: Mapping[str, float], counted: Sequence[Constant] = ()) -> dict[str, Constant]:
    """Return the constants by name; ``counted`` ones override defaults, and ``changes`` override both.

    Raises :class:`UserError` if a name in ``changes`` is unknown.
    """
    known = {constant.name: constant for constant in (*CONSTANTS, *counted)}
    for name, value in changes.items():
        if name not in known:
            raise UserError(f"no constant {name!r}: there are {', '.join(sorted(known))}")
        known[name] = msgspec.structs.replace(known[name], value=value, kind="given", source="--set")
    return known


def plan(
    envs: int,
    workload: Workload,
    tasks: TaskSet,
    max_staleness: int,
    changes: Mapping[str, float],
    counted: Sequence[Constant] = (),
) -> Sizing:
    """Return the plan for ``envs`` busy environments."""
    constants = with_changes(changes, counted)
    values = {name: constant.value for name, constant in constants.items()}
    values |= workload_values(workload, tasks, values["full"])
    values |= {"blob_kb": BLOB_KB, "envs": envs, "staleness": max(1, max_staleness)}
    add_figures(values)
    texts = {name: format_number(number) for name, number in values.items()}
    rows = (re.split(r"\s*\|\s*", line) for line in FORMULA_TABLE.splitlines())
    figures = [
        Figure(name, what, round_figure(values[name]), unit, " ".join(formula.format_map(texts).split()))
        for name, what, unit, formula in rows
    ]
    return Sizing(envs, figures, list(constants.values()))


def round_figure(number: float) -> float:
    """Round to three digits, or to a whole number from 100 on."""
    return float(f"{number:.3g}") if number < 100 else round(number)


def format_number(number: float) -> str:
    """Format with four digits, or as a whole number from 1,000 on."""
    return f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"


@lru_cache(maxsize=64)
def estimate_mean(spread: Spread) -> float:
    """Return a distribution's mean over :data:`DRAWS` draws."""
    rng = random.Random(0)
    return sum(spread.draw(rng) for _ in range(DRAWS)) / DRAWS


def workload_values(workload: Workload, tasks: TaskSet, fullness: float) -> dict[str, float]:
    """Return the mean of each time that the workload draws, and of the steps of an episode."""
    lengths = [typical_steps(task.page) or task.max_steps for task in tasks.train]
    return {
        "steps": sum(lengths) / len(lengths) * math.exp(workload.steps_sigma**2 / 2),
        "reset_s": estimate_mean(workload.reset_s),
        "settle_s": estimate_mean(workload.settle_s),
        "evaluate_s": estimate_mean(workload.evaluate_s),
        "generate_s": workload.generation.takes_s(estimate_mean(workload.generation.tokens), fullness),
        "optimizer_s": estimate_mean(workload.optimizer_s),
        "switch_s": workload.switch_s,
    }


def add_figures(v: dict[str, float]) -> None:
    """Add the values of :data:`FORMULA_TABLE` to the constants and the workload's means."""
    v["episode_s"] = v["reset_s"] + v["steps"] * (v["settle_s"] + v["generate_s"]) + v["evaluate_s"]
    v["episodes_per_s"] = v["envs"] / v["episode_s"]
    steps_per_s = v["steps_per_s"] = v["episodes_per_s"] * v["steps"]
    copies = v["copies"]
    hosts = v["envs"] / v["slots_a_host"]
    v["under_way"] = steps_per_s * v["generate_s"]
    v["rollout_workers"] = math.ceil(v["under_way"] / v["places"] / v["full"])
    v["env_workers"] = math.ceil(hosts)
    v["env_cores"] = v["slots_a_host"] / v["episode_s"] * v["steps"] * v["env_ms"] / 1000 / v["busy"]
    v["env_memory"] = v["slots_a_host"] * v["env_mb"]
    v["partitions"] = max(math.ceil(max(steps_per_s / v["partition_per_s"], hosts)), v["rollout_workers"])
    v["recorders"] = math.ceil(steps_per_s * v["recorder_ms"] / 1000 / v["busy"])
    v["curator_cores"] = v["episodes_per_s"] / v["curator_per_s"]
    row_ms = v["cassandra_ms"] + v["blob_ms"] * v["screenshot_kb"] / v["blob_kb"]
    for service, cost_ms, cores in (("brokers", v["kafka_ms"], "broker_cores"), ("nodes", row_ms, "store_cores")):
        v[service] = max(copies, math.ceil(steps_per_s * cost_ms / 1000 * copies / v[cores] / v["busy"]))
    v["events_mb_per_s"] = steps_per_s * v["event_kb"] * (copies + 1) / 1000
    v["screenshots_mb_per_s"] = steps_per_s * v["screenshot_kb"] * (copies + v["images"]) / 1000
    add_disk(v)
    v["rollout_gpus"] = v["rollout_workers"] * v["gpus_a_worker"]
    v["batch"] = math.ceil(v["envs"] / v["running"] / v["staleness"])
    v["version_s"] = max(v["optimizer_s"], v["episode_s"] * v["rollouts"] / v["running"] / v["staleness"])
    v["switching"] = math.ceil(2 * v["rollout_workers"] * v["switch_s"] / v["version_s"])
    gpus = steps_per_s * v["trained_share"] * v["train_tokens"] / v["tokens_per_s"]
    v["train_gpus"] = math.ceil(gpus / v["trainer_gpus"]) * v["trainer_gpus"]


def add_disk(v: dict[str, float]) -> None:
    """Add what screenshots and records take of network and disks, to the values of a plan."""
    v["screenshots_written"] = v["steps_per_s"] * v["screenshot_kb"] / 1000
    v["screenshots_gb_a_day"] = v["screenshots_written"] * v["copies"] * v["disk"] * 86_400 / 1000
    v["screenshots_gb_a_run"] = v["screenshots_gb_a_day"] * v["run_hours"] / 24
    v["log_gb"] = v["steps_per_s"] * v["event_kb"] * v["copies"] * v["log_hours"] * 3600 / 1e6
