"""The policy, and the rollout workers that serve it."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from dart_streams.config.dialect import ActionDialect
from dart_streams.config.openai import Openai
from dart_streams.config.record_sizes import MOST_TOKENS
from dart_streams.config.section import AboveZero, Count, NonNegative, Optional, Positive, Section, Share
from topics.values import Name

SwitchMode = Literal["keep", "finish", "abort"]
SecondSetWanted = Literal["auto", "device", "host", "none"]


SHORTEST_ANSWER = 32
"""Tokens of an answer of another dialect than ours, without a thought."""


class Policy(Section, frozen=True):
    """The model and the bounds of its prompts."""

    model_id: Name = "tiny"
    """The name under which weight versions are published."""
    path: str = ""
    """A Hugging Face directory of an image-text-to-text model that the installed transformers and vLLM both serve;
    empty: the tiny demonstration policy, built on first use."""
    max_images: Positive = 2
    """Screenshots in a prompt, the newest."""
    min_images: Count = 0
    """Screenshots that stay when older ones are dropped in a block; 0: one is dropped at each step. Between two drops
    each prompt extends the one before, so a prefix cache has all but its newest turns."""
    max_texts: Count = 5
    """Earlier answers in a prompt, the newest."""
    min_texts: Count = 0
    """Earlier answers that stay when older ones are dropped in a block; 0: one is dropped at each step."""
    min_pixels: Positive = 3136
    """Smallest image in pixels; a smaller screenshot is scaled up. For models whose image processor has such bounds."""
    max_pixels: Positive = 1_003_520
    """Largest image in pixels; a larger screenshot is scaled down. For models whose image processor has such bounds."""
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 24
    """Longest answer in tokens."""
    dialect: ActionDialect = ActionDialect()

    @property
    def sliding(self) -> "Policy":
        """The same policy with windows that drop one screenshot and one answer at each step."""
        return msgspec.structs.replace(self, min_images=0, min_texts=0)

    def __post_init__(self) -> None:
        """Refuse answers too short for their dialect, and a window whose lower bound is above the upper one."""
        if self.min_images > self.max_images:
            raise ValueError(f"min_images = {self.min_images} is more than max_images = {self.max_images}")
        if self.min_texts > self.max_texts:
            raise ValueError(f"min_texts = {self.min_texts} is more than max_texts = {self.max_texts}")
        if self.dialect.name != "native" and self.max_tokens < SHORTEST_ANSWER:
            raise ValueError(
                f'max_tokens = {self.max_tokens} is too few for dialect.name = "{self.dialect.name}": set at least '
                f"{SHORTEST_ANSWER}; with thoughts, 400 are usual"
            )


class Warmup(Optional, frozen=True):
    """The tiny policy, and its supervised warm-up on oracle demonstrations, which travel the same topics."""

    architecture: Literal["qwen2_5_vl", "qwen3_vl"] = "qwen2_5_vl"
    """Whose architecture it has; a model of ``policy.path`` has its own."""
    width: Annotated[int, Meta(ge=64, le=2048, multiple_of=64)] = 128
    """Its hidden size, in heads of 32."""
    demonstrations: Positive = 2000
    """Demonstrations to record."""
    steps: Positive = 400
    """Optimizer steps."""
    batch: Positive = 16
    """Demonstrations in a batch."""
    learning_rate: AboveZero = 1e-3
    """AdamW's learning rate."""


class Scripted(Optional, frozen=True):
    """The ``scripted`` engine, without a model. A ``[workload]`` takes the place of its latency."""

    behaviour: Literal["oracle", "random"] = "oracle"
    """What it answers: the right action, or any."""
    latency_ms: NonNegative = 10.0
    """Time to an answer."""
    success_rate: Share = 0.7
    """Share of episodes that the oracle solves."""


class Vllm(Optional, frozen=True):
    """The ``vllm`` engine."""

    kv_cache_gib: Positive = 1
    """Memory of the key-value cache."""
    gather_ms: NonNegative = 0.0
    """Milliseconds that a request waits for others, to be computed together with them: the fewer steps the engine
    makes, the less CPU time a request costs. For engines whose steps cost the same for one request as for ten, beside
    environments that have no core to themselves."""
    second_set: SecondSetWanted = "auto"
    """Where a version is loaded while the one before serves, so that a switch is a copy between two steps: a second set
    of weights on the ``device``, or if it has no room for them and a key-value cache in pinned memory of the ``host``;
    ``none`` loads during the switch. ``auto``: on a CPU a second set, on a GPU none."""
    start_s: AboveZero = 240.0
    """How long a run waits at its start until every worker serves weights: a large model is read and compiled."""
    hang_s: AboveZero = 300.0
    """How long a step of the engine, or a switch of weights, may take until the worker ends as one that hangs, and is
    started again; with ``switch_mode = "finish"`` a switch takes as long as the answers under way."""
    parity_nats: AboveZero = 0.005
    """A worker refuses to serve if its log-probabilities differ by more than this, in the mean of a fixed probe, from
    the trainer's; half precision in both needs more than the default. Also of an endpoint with ``openai.trainable``."""


class Rollout(Section, frozen=True):
    """Rollout workers."""

    heartbeat_s: ClassVar[float] = 0.5
    """Seconds between a worker's heartbeats; a few fit into ``liveness_s``, so a lost one does not matter."""
    liveness_s: ClassVar[float] = 10.0
    """A worker without a heartbeat for this many seconds no longer delays the others' weight update."""

    engine: Literal["vllm", "scripted", "openai"] = "vllm"
    """The inference engine: vLLM in the worker's process, a script, or an ``openai``-compatible endpoint."""
    workers: Count = 1
    """Processes."""
    max_in_flight: Positive = 32
    """Concurrent requests of a worker."""
    roll_width: Positive = 1
    """Workers that update their weights at the same time: enough for the last one to have a version before the next is
    published, or its tokens are too old to train on (``dart-streams plan`` computes it)."""
    switch_mode: SwitchMode = "keep"
    """In-flight requests at a weight update ``keep`` their tokens and go on, or ``finish`` first while new ones wait,
    or ``abort`` and start again. Only with ``keep`` can an answer have tokens of two versions."""
    vllm: Vllm = Vllm()
    scripted: Scripted = Scripted()
    openai: Openai = Openai()

    def __post_init__(self) -> None:
        """Refuse an endpoint without an address, and keys of another engine, which would be ignored silently."""
        if self.engine == "openai" and not (self.openai.base_url and self.openai.model):
            raise ValueError("engine openai needs openai.base_url and openai.model")
        if self.engine != "openai" and (keys := self.openai.changed):
            named = ", ".join(f"openai.{key}" for key in sorted(keys))
            raise ValueError(f'{named} can\'t be used with engine = "{self.engine}": set "openai", or leave it out')
        if self.engine != "vllm" and self.vllm.second_set != "auto":
            raise ValueError(
                f'vllm.second_set = "{self.vllm.second_set}" can\'t be used with engine = "{self.engine}", which '
                'loads no weights: set "vllm", or leave it out'
            )

    @property
    def fixed_weights(self) -> bool:
        """Whether the engine keeps its weights, whatever the trainer publishes."""
        return self.engine == "openai"

    @property
    def endpoint_model(self) -> str:
        """The model whose weights are no version of the trainer's; empty: the engine serves such versions."""
        return self.openai.model if self.engine == "openai" else ""

    @property
    def demonstrates(self) -> bool:
        """Whether orders for demonstrations are played by rollout workers, not by the environment's oracle."""
        return self.engine == "openai" and self.openai.demonstrate
