"""The policy, and the rollout workers that serve it."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from dart_streams.config.section import AboveZero, Count, NonNegative, Optional, Positive, Section, Share

SwitchMode = Literal["keep", "finish", "abort"]
SecondSetWanted = Literal["auto", "device", "host", "none"]


class Policy(Section, frozen=True):
    """The model and the bounds of its prompts."""

    model_id: str = "tiny"
    """The name under which weight versions are published."""
    path: str = ""
    """A Hugging Face directory of the Qwen2.5-VL class; empty: the tiny demonstration policy, built on first use."""
    max_images: Positive = 2
    """Screenshots in a prompt, the newest."""
    max_texts: Count = 5
    """Earlier answers in a prompt, the newest."""
    min_pixels: Positive = 3136
    """Smallest image in pixels; a smaller screenshot is scaled up."""
    max_pixels: Positive = 1_003_520
    """Largest image in pixels; a larger screenshot is scaled down."""
    max_tokens: Positive = 24
    """Longest answer in tokens."""


class Warmup(Optional, frozen=True):
    """Supervised warm-up of the tiny policy on oracle demonstrations, which travel the same topics."""

    demonstrations: Positive = 2000
    """Demonstrations to record."""
    steps: Positive = 400
    """Optimiser steps."""
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
    parity_nats: AboveZero = 0.005
    """A worker refuses to serve if its log-probabilities differ by more than this, in the mean of a fixed probe, from
    the trainer's; half precision in both needs more than the default."""


class Rollout(Section, frozen=True):
    """Rollout workers."""

    heartbeat_s: ClassVar[float] = 0.5
    """Seconds between a worker's heartbeats; a few fit into ``liveness_s``, so a lost one does not matter."""
    liveness_s: ClassVar[float] = 10.0
    """A worker without a heartbeat for this many seconds no longer delays the others' weight update."""

    engine: Literal["vllm", "scripted"] = "vllm"
    """The inference engine."""
    workers: Annotated[int, Meta(ge=0)] = 1
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
