"""How large a deployment must be for so many environments: formulas over measured unit costs. Pure.

Every figure carries its formula, with the numbers in it, and every constant where it is from. A constant that was
assumed says so; measure yours and lay it over with ``--set``.
"""

import math
import random
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from dart_streams.config.workload import Spread, Workload, typical_steps
from dart_streams.errors import UserError
from dart_streams.tasks import TaskSet

DRAWS = 20_000
"""How many draws of a distribution its mean is taken over."""


class Constant(msgspec.Struct, frozen=True):
    """A number that a plan rests on."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


class Figure(msgspec.Struct, frozen=True):
    """A number of the plan."""

    what: str
    needed: float
    unit: str
    formula: str


SLOTS = "docs/performance.md, bench slots --slots 1000 at 314 steps/s, 22 November"
CONSTANTS = (
    Constant("recorder_ms", 0.65, "core-ms/step", "measured", SLOTS),
    Constant("kafka_ms", 0.93, "core-ms/step", "measured", f"{SLOTS}; one broker, one copy"),
    Constant("cassandra_ms", 0.87, "core-ms/step", "measured", f"{SLOTS}; one node, one copy, small screenshots"),
    Constant("curator_per_s", 1016.0, "trajectories/s", "measured", "docs/performance.md, bench agents, slowest run"),
    Constant("screenshot_kb", 300.0, "kB", "assumed", "a PNG of a desktop of 1920x1080"),
    Constant("event_kb", 8.0, "kB/step", "assumed", "observation, request and answer of a step of about 100 tokens"),
    Constant("images", 5.0, "screenshots/request", "published", "history of DART's release: at most 5 images"),
    Constant("broker_cores", 8.0, "cores", "assumed", "of a broker"),
    Constant("store_cores", 8.0, "cores", "assumed", "of a database node"),
    Constant("copies", 3.0, "", "assumed", "replicas of a record, and of a row"),
    Constant("busy", 0.6, "", "assumed", "how busy a core may be, so that a step's overhead stays small"),
    Constant("partition_per_s", 100.0, "records/s", "assumed", "of a partition, well below what one consumer reads"),
    Constant("slots_a_host", 64.0, "slots", "assumed", "of an environment worker process"),
    Constant("places", 32.0, "requests", "assumed", "under way in a rollout worker before it is slower than modelled"),
    Constant("rollouts", 8.0, "rollouts/group", "published", "DART: 8 rollouts of a task"),
    Constant("full", 0.7, "", "assumed", "how full rollout workers may be"),
    Constant("gpus_a_worker", 2.0, "GPUs", "published", "DART's release: 2 H100 a rollout worker"),
    Constant("trainer_gpus", 8.0, "GPUs", "published", "DART's release: 8 H100 train"),
    Constant("trained_per_step", 1300.0, "steps", "assumed", "that those GPUs train on in an optimiser step of 60 s"),
    Constant("running", 3.4, "rollouts", "simulated", "under way a group that is open or waits (bench simulate)"),
    Constant("trained_share", 0.7, "", "simulated", "of played steps that are trained on, bench simulate"),
)


class Sizing(msgspec.Struct, frozen=True):
    """A plan: what is needed, from what."""

    envs: int
    figures: list[Figure]
    constants: list[Constant]


def overlaid(changes: Mapping[str, float]) -> dict[str, Constant]:
    """Return the constants by name, with some replaced.

    Raises
    ------
    UserError
        If there is no constant of such a name.
    """
    known = {constant.name: constant for constant in CONSTANTS}
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
) -> Sizing:
    """Return what ``envs`` environments need when all are busy."""
    constants = overlaid(changes)
    book = CapacityBook(constants)
    rates(book, envs, workload, tasks)
    streams(book)
    gpus(book, workload, max_staleness)
    return Sizing(envs, book.figures, list(constants.values()))


class CapacityBook:
    """Figures under way; a formula may name constants and figures that came before."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self.values = {name: constant.value for name, constant in constants.items()}
        self.figures: list[Figure] = []

    def add(self, what: str, value: float, unit: str, formula: str, **shown: float) -> float:
        """Note a figure; names in braces in the formula are shown as the numbers they stand for."""
        known = self.values | shown
        text = formula.format_map({name: readable(number) for name, number in known.items()})
        self.figures.append(Figure(what, float(f"{value:.3g}") if value < 100 else round(value), unit, text))
        return value

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def readable(number: float) -> str:
    """Return a number with four digits, or whole."""
    return f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"


@lru_cache(maxsize=64)
def mean(spread: Spread) -> float:
    """Return a distribution's mean, of many draws."""
    chance = random.Random(0)
    return sum(spread.draw(chance) for _ in range(DRAWS)) / DRAWS


def rates(book: CapacityBook, envs: int, workload: Workload, tasks: TaskSet) -> None:
    """Say how much happens a second."""
    engine = workload.generation
    lengths = [typical_steps(task.page) or task.max_steps for task in tasks.train]
    steps = sum(lengths) / len(lengths) * math.exp(workload.steps_sigma**2 / 2)
    values = book.values
    values["envs"], values["steps"] = envs, steps
    values["reset_s"], values["settle_s"] = mean(workload.reset_s), mean(workload.settle_s)
    values["evaluate_s"] = mean(workload.evaluate_s)
    values["generate_s"] = engine.takes_s(mean(engine.tokens), values["full"])
    values["episode_s"] = book.add(
        "episode",
        values["reset_s"] + steps * (values["settle_s"] + values["generate_s"]) + values["evaluate_s"],
        "s",
        "reset {reset_s} + {steps} steps x (settle {settle_s} + generate {generate_s}) + evaluate {evaluate_s}",
    )
    values["episodes_per_s"] = book.add(
        "episodes", envs / values["episode_s"], "/s", "{envs} environments / episode {episode_s}"
    )
    values["steps_per_s"] = book.add(
        "steps", values["episodes_per_s"] * steps, "/s", "{episodes_per_s} episodes/s x {steps} steps"
    )


def streams(book: CapacityBook) -> None:
    """Say what Kafka, Cassandra, the recorder and the curator need."""
    v = book.values
    book.add(
        "partitions of observations, action-requests, actions",
        math.ceil(max(v["steps_per_s"] / v["partition_per_s"], v["envs"] / v["slots_a_host"])),
        "each",
        "the larger of {steps_per_s} steps/s / {partition_per_s} and {envs} slots / {slots_a_host} a host",
    )
    book.add(
        "partitions of rollout-orders",
        math.ceil(v["envs"] / v["slots_a_host"]),
        "",
        "{envs} slots / {slots_a_host} a host: each host must own one",
    )
    book.add(
        "recorders",
        math.ceil(v["steps_per_s"] * v["recorder_ms"] / 1000 / v["busy"]),
        "processes",
        "{steps_per_s} steps/s x {recorder_ms} core-ms / 1000 / {busy}",
    )
    book.add(
        "curator",
        v["episodes_per_s"] / v["curator_per_s"],
        "cores",
        "{episodes_per_s} episodes/s / {curator_per_s} trajectories/s; one process decides",
    )
    book.add(
        "brokers",
        max(
            v["copies"],
            math.ceil(v["steps_per_s"] * v["kafka_ms"] / 1000 * v["copies"] / v["broker_cores"] / v["busy"]),
        ),
        "",
        "{steps_per_s} steps/s x {kafka_ms} core-ms / 1000 x {copies} copies / {broker_cores} cores / {busy}; at least "
        "one a copy",
    )
    book.add(
        "database nodes",
        max(
            v["copies"],
            math.ceil(v["steps_per_s"] * v["cassandra_ms"] / 1000 * v["copies"] / v["store_cores"] / v["busy"]),
        ),
        "",
        "{steps_per_s} steps/s x {cassandra_ms} core-ms / 1000 x {copies} copies / {store_cores} cores / {busy}; at "
        "least one a copy",
    )
    book.add(
        "network, events",
        v["steps_per_s"] * v["event_kb"] * (v["copies"] + 1) / 1000,
        "MB/s",
        "{steps_per_s} steps/s x {event_kb} kB x ({copies} copies + 1 reader) / 1000",
    )
    book.add(
        "network, screenshots",
        v["steps_per_s"] * v["screenshot_kb"] * (v["copies"] + v["images"]) / 1000,
        "MB/s",
        "{steps_per_s} steps/s x {screenshot_kb} kB x ({copies} copies + {images} read a request, none cached) / 1000",
    )
    book.add(
        "screenshots kept a day",
        v["steps_per_s"] * v["screenshot_kb"] * v["copies"] * 86_400 / 1e9,
        "TB",
        "{steps_per_s} steps/s x {screenshot_kb} kB x {copies} copies x 86400 s",
    )


def gpus(book: CapacityBook, workload: Workload, max_staleness: int) -> None:
    """Say what generation and training need, and which batch keeps all slots busy."""
    v = book.values
    v["under_way"] = book.add(
        "requests under way", v["steps_per_s"] * v["generate_s"], "", "{steps_per_s} steps/s x generate {generate_s} s"
    )
    v["rollout_workers"] = book.add(
        "rollout workers",
        math.ceil(v["under_way"] / v["places"] / v["full"]),
        "",
        "{under_way} under way / {places} places / {full}",
    )
    book.add(
        "rollout GPUs",
        v["rollout_workers"] * v["gpus_a_worker"],
        "",
        "{rollout_workers} workers x {gpus_a_worker} GPUs",
    )
    v["staleness"] = max(1, max_staleness)
    v["batch"] = book.add(
        "groups a training step, at least",
        math.ceil(v["envs"] / v["running"] / v["staleness"]),
        "groups",
        "{envs} slots / {running} rollouts under way a group / staleness {staleness}",
    )
    v["optimiser_s"], v["switch_s"] = mean(workload.optimiser_s), workload.switch_s
    v["version_s"] = book.add(
        "a version each",
        max(v["optimiser_s"], v["episode_s"] * v["rollouts"] / v["running"] / v["staleness"]),
        "s",
        "the larger of optimiser {optimiser_s} s and episode {episode_s} s x {rollouts} rollouts / {running} under "
        "way / staleness {staleness}",
    )
    book.add(
        "rollout workers that switch at a time",
        math.ceil(2 * v["rollout_workers"] * v["switch_s"] / v["version_s"]),
        "workers",
        "2 x {rollout_workers} workers x switch {switch_s} s / {version_s} s: all have a version at half of its time",
    )
    book.add(
        "trainer GPUs",
        math.ceil(v["steps_per_s"] * v["trained_share"] * v["optimiser_s"] / v["trained_per_step"]) * v["trainer_gpus"],
        "",
        "{steps_per_s} steps/s x {trained_share} trained on x {optimiser_s} s / {trained_per_step} steps, rounded up, "
        "x {trainer_gpus} GPUs",
    )
