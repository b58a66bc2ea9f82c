"""The policy and its rollout workers."""

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
"""Tokens of an answer in another dialect than ``native``, without a thought."""


class Policy(Section, frozen=True):
    """The model and the bounds of its prompts."""

    model_id: Name = "tiny"
    """The name under which weight versions are published."""
    path: str = ""
    """An image-text-to-text model for transformers and vLLM: a Hugging Face directory, or a model of the hub
    (``ORGANIZATION/NAME``, ``ORGANIZATION/NAME@REVISION``). A relative directory is looked for beside the file, then in
    the working directory. Empty: the tiny demonstration policy, built on first use."""
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
    """Smallest image in pixels; smaller screenshots are scaled up, by image processors with such bounds."""
    max_pixels: Positive = 1_003_520
    """Largest image in pixels; larger screenshots are scaled down, by image processors with such bounds."""
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
    """The tiny policy, and its supervised warm-up on demonstrations of the oracle."""

    architecture: Literal["qwen2_5_vl", "qwen3_vl"] = "qwen2_5_vl"
    """Its architecture."""
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
    """The ``scripted`` engine, without a model. A ``[workload]`` replaces its latency."""

    behaviour: Literal["oracle", "random"] = "oracle"
    """Its answers: the right action, or a random one."""
    latency_ms: NonNegative = 10.0
    """Time to an answer."""
    success_rate: Share = 0.7
    """Share of episodes that the oracle solves."""


class Vllm(Optional, frozen=True):
    """The ``vllm`` engine."""

    tensor_parallel: Positive = 1
    """Ranks of a worker, each with an equal share of the model's heads, on a GPU and in a process of its own. It must
    divide the numbers of attention heads and of key-value heads."""
    kv_cache_gib: Positive = 1
    """Memory of the key-value cache, of all ranks together."""
    gather_ms: NonNegative = 0.0
    """Time that a request waits for others to share the engine's steps. It saves CPU time where a step costs the same
    for one request as for ten."""
    prefix_cache: bool = True
    """Whether a prompt reuses the keys and values of an earlier one that it extends. A switch of weights empties this
    cache."""
    second_set: SecondSetWanted = "auto"
    """Place of the next version while the present one serves: the ``device``, or pinned memory of the ``host`` where
    the device lacks room. A switch is then one copy. ``none`` loads during the switch; ``auto`` is ``device`` on a CPU
    and ``none`` on a GPU."""
    start_s: AboveZero = 240.0
    """Time that a run waits at its start for served weights, while models are read and compiled."""
    hang_s: AboveZero = 300.0
    """Timeout of an engine step and of a weight switch, after which the worker restarts. A switch with ``switch_mode =
    "finish"`` includes the answers under way."""
    parity_nats: AboveZero = 0.005
    """Largest mean difference between the log-probabilities of worker (or trainable endpoint) and trainer on a fixed
    probe; beyond it the worker refuses to serve. Half precision in both needs more than the default."""


class Rollout(Section, frozen=True):
    """Rollout workers."""

    heartbeat_s: ClassVar[float] = 0.5
    """Interval of a worker's heartbeats, far below ``liveness_s``."""
    liveness_s: ClassVar[float] = 10.0
    """Age of a worker's last heartbeat from which it no longer delays the others' weight update."""

    engine: Literal["vllm", "scripted", "openai"] = "vllm"
    """The inference engine: vLLM in the worker's process, a script, or an ``openai``-compatible endpoint."""
    workers: Count = 1
    """Processes."""
    max_in_flight: Positive = 32
    """Concurrent requests of a worker."""
    roll_width: Positive = 1
    """Workers that update their weights at the same time. All must have a version before the next one is published, or
    tokens get too old to train on (docs/kubernetes.md, Sizes)."""
    switch_mode: SwitchMode = "keep"
    """In-flight requests at a weight update ``keep`` their tokens and continue with the new version, ``finish`` first
    while new ones wait, or ``abort`` and restart."""
    vllm: Vllm = Vllm()
    scripted: Scripted = Scripted()
    openai: Openai = Openai()

    def __post_init__(self) -> None:
        """Refuse an endpoint without an address, and keys of another engine."""
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
        if self.engine != "vllm" and self.vllm.tensor_parallel != 1:
            raise ValueError(
                f'vllm.tensor_parallel = {self.vllm.tensor_parallel} can\'t be used with engine = "{self.engine}", '
                'whose model this worker does not hold: set "vllm", or leave it out'
            )

    @property
    def fixed_weights(self) -> bool:
        """Whether the engine never loads the trainer's weights."""
        return self.engine == "openai"

    @property
    def endpoint_model(self) -> str:
        """The model of an endpoint; empty if the engine serves the trainer's versions."""
        return self.openai.model if self.engine == "openai" else ""

    @property
    def demonstrates(self) -> bool:
        """Whether rollout workers play demonstrations, not the environment's oracle."""
        return self.engine == "openai" and self.openai.demonstrate
