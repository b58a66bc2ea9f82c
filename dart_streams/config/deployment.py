"""A deployment: every table of the configuration file."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from dart_streams.config import record_sizes
from dart_streams.config.connections import Bus, Services, Store
from dart_streams.config.curation import Curation
from dart_streams.config.env import Desktops, Env
from dart_streams.config.hardware import Hardware
from dart_streams.config.launch import LaunchOptions
from dart_streams.config.rollout import Policy, Rollout, Warmup
from dart_streams.config.section import AboveZero, NonNegative, Optional, Section, Share
from dart_streams.config.tracker import Tracker
from dart_streams.config.trainer import Trainer
from dart_streams.config.workload import Workload
from topics.values import LEAST_TEMPERATURE, GroupSize, Sampling, Version

PlayedTemperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
"""A temperature that engines sample with; the contract's bounds are wider, so that old records decode."""


RUN_ID = re.compile(r"^(?!latest$)[A-Za-z0-9_][A-Za-z0-9_-]{0,193}$(?!\n)")
"""A run's id, which is a part of topics' names, a folder beside ``latest``, and an argument of commands."""


class Run(Section, frozen=True):
    """The supervised run."""

    id: Annotated[str, msgspec.Meta(pattern=RUN_ID.pattern)] = "default"
    """The run's name; ``dart-streams run`` sets it in the resolved configuration that it writes."""
    state_dir: str = ".dart"
    """The folder of runs, policies and local services."""
    minutes: NonNegative = 9.0
    """Length of the training phase; 0: a run ends after the demonstrations and the first evaluation."""
    train_steps: Version | None = None
    """The optimizer step that ends the training phase early."""
    demonstrate: bool = True
    """Fill the experience pool with a demonstration of each training task first."""
    settle_s: NonNegative = 150.0
    """Time that open episodes may take after training; orders of longer ones go back to their topic."""
    drain_s: NonNegative = 10.0
    """Time that a process may take to end after SIGTERM."""

    @property
    def trains(self) -> bool:
        """Whether there is a training phase."""
        return self.minutes > 0

    @property
    def folder(self) -> Path:
        """The run's own folder: its configuration, logs, metrics, weights and report."""
        return Path(self.state_dir) / "runs" / self.id


class Tasks(Section, frozen=True):
    """The task set."""

    file: str = "tasks.toml"
    """The task file, relative to the configuration file."""
    proposals: bool = False
    """Take tasks from the topic ``tasks`` too, as soon as a check has accepted them. The task file may then have no
    training tasks of its own."""


class Evaluation(Section, frozen=True):
    """Evaluation on the held-out tasks, before and after training."""

    episodes: GroupSize = 240
    """Rollouts of an evaluation; 0: no evaluation."""
    temperatures: Annotated[tuple[PlayedTemperature, ...], msgspec.Meta(min_length=1)] = (1.0,)
    """Sampling temperatures from 0.01 to 2; 0 is greedy. The first is the report's; the others play each task once."""
    timeout_s: AboveZero = 300.0
    """Time that an evaluation may take."""

    def __post_init__(self) -> None:
        """Refuse temperatures that engines raise."""
        for temperature in self.temperatures:
            if 0 < temperature < LEAST_TEMPERATURE:
                raise ValueError(
                    f"temperatures has {temperature:g}, which engines raise to {LEAST_TEMPERATURE}: set that, or 0 "
                    "for greedy answers"
                )


class Telemetry(Section, frozen=True):
    """Traces, metrics and stall reports."""

    sampling: Share = 1.0
    """The share of traced trajectories, of at most 100 a second in each process; failed spans are always written."""
    otlp_endpoint: str = ""
    """A collector's base address (OTLP over HTTP), such as ``http://127.0.0.1:4318``; empty: the run's folder."""
    stall_s: AboveZero = 30.0
    """Length of a wait after which a process reports it."""

    def __post_init__(self) -> None:
        """Refuse an unusable address."""
        if self.otlp_endpoint:
            try:
                parts = urlsplit(self.otlp_endpoint)
                sendable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                sendable = False
            if not sendable:
                raise ValueError(f"otlp_endpoint {self.otlp_endpoint!r} must look like http://HOST:4318")


class FeedbackRules(Optional, frozen=True):
    """Feedback of people, from ``dart-streams feedback`` and from the page, as training data."""

    enabled: bool = False
    """Train on feedback: an agent of the curator turns it into groups."""
    reward: Literal["environment", "person"] = "person"
    """Whose judgement of a training rollout counts. With ``environment`` a person's is kept beside it, and only
    corrections are trained on."""
    recent: Annotated[int, msgspec.Meta(ge=0, le=256)] = 16
    """Number of the newest corrected steps and good trajectories that each later step imitates again."""
    credit_taken_over: bool = False
    """Train the policy's own steps of a rollout that a person took over, with its reward. The outcome is not theirs
    alone, so by default they are not trained on."""


class Ui(Optional, frozen=True):
    """The live web page of a run, which only reads and listens on loopback."""

    enabled: bool = True
    """Serve the page in each run; it reads nothing until a browser opens it."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8765
    """The port, or the first free one above; 0: any."""


class Config(Section, frozen=True):
    """A whole deployment."""

    recipe: tuple[str, ...] = ()
    """Recipes by name: one, or a list. Their settings apply where the file has none, and their rules replace DART's."""
    recipes: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings of the recipes: a table for each, such as ``[recipes.mobilerl]``."""
    run: Run = Run()
    bus: Bus = Bus()
    store: Store = Store()
    services: Services = Services()
    tasks: Tasks = Tasks()
    hardware: Hardware = Hardware()
    launch: LaunchOptions = LaunchOptions()
    env: Env = Env()
    desktops: Desktops = Desktops()
    policy: Policy = Policy()
    warmup: Warmup = Warmup()
    rollout: Rollout = Rollout()
    curation: Curation = Curation()
    trainer: Trainer = Trainer()
    evaluation: Evaluation = Evaluation()
    telemetry: Telemetry = Telemetry()
    ui: Ui = Ui()
    tracker: Tracker = Tracker()
    feedback: FeedbackRules = FeedbackRules()
    workload: Workload | None = None

    def __post_init__(self) -> None:
        """Refuse records too large for their topics, deadlocks, and tokens that can't be trained on."""
        if too_large := record_sizes.size_refusal(self):
            raise ValueError(too_large)
        for key, workers in (("env.workers", self.env.workers), ("rollout.workers", self.rollout.workers)):
            if workers > (partitions := self.bus.topics.partitions or workers):
                raise ValueError(
                    f"bus.topics.partitions {partitions} is less than {key} {workers}: a worker without a partition "
                    "has no work"
                )
        if self.feedback.enabled and self.bus.topics.retention_hours.get("curated"):
            raise ValueError(
                "bus.topics.retention_hours.curated with feedback.enabled: a late trainer counts expired groups as "
                "consumed, and can't know which were of feedback, which count for nothing: leave one of both out"
            )
        if self.rollout.engine == "openai" and self.run.trains:
            if not self.rollout.openai.trainable:
                raise ValueError(
                    "rollout.engine openai with run.minutes above 0 needs rollout.openai.trainable = true and one "
                    "that gives token ids and log-probabilities, as vLLM's server does: answers without them cannot be "
                    "trained on. To evaluate the endpoint or to collect demonstrations with it set run.minutes = 0"
                )
            if self.curation.dispatch.mode == "coupled":
                raise ValueError(
                    "curation.dispatch.mode coupled waits until every rollout worker serves the newest weights, which "
                    "rollout.engine openai never does: set rollout-wise"
                )
            if self.trainer.publish.full_every > 1:
                raise ValueError(
                    f"with trainer.publish.full_every = {self.trainer.publish.full_every} rollout workers apply "
                    "deltas, and with rollout.engine openai none loads a version: leave it out"
                )

    def sampling(self, temperature: float = 1.0) -> Sampling:
        """Return the sampling parameters of orders."""
        return Sampling(temperature=temperature, max_tokens=self.policy.max_tokens)
