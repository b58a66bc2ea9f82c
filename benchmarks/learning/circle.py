"""Training loop in one process: the real data manager and trainer, recorded problems, and a local policy.

``env.slots`` episodes are played at once, then the trainer takes the curated groups. Data is therefore younger than in
a deployment, where episodes run during the optimizer step. Before each of these batches ``rollout.roll_width`` of the
``rollout.workers`` switch to the newest weights, so they play different versions if not all may switch at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.learning.episodes import Answer, RecordedEpisode, play, play_demonstration, single_order
from benchmarks.learning.network import Generation, PrefixScorer, Sampler
from benchmarks.learning.screens import Recording
from dart_streams.config import Config, Trainer
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.in_memory import InMemoryCircle
from dart_streams.curation.recipes import wants_demonstrations
from dart_streams.curation.staleness import group_capacity, group_staleness
from dart_streams.episodes.guidance import recorded_answers
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.policy.rendering import Prompt, Renderer, renderer_of
from topics import curated, rollout_orders, trajectories, weights, weights_serving
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, Sampling, VersionSpan
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from trainer.data.batch_builder import tokens_of
from trainer.data.collate import Collator, ModelImage
from trainer.data.prefetch import GroupReader
from trainer.data.rows import RowKinds
from trainer.data.samples import ReadyGroup
from trainer.data.successes import SuccessMemory, history_limit, replay_group
from trainer.hooks import DART, StepStart, TrainingRules, bind_training, is_pretraining
from trainer.learning import critic, model
from trainer.learning.imitation import plan_imitation
from trainer.learning.learner import Learner, never_stop
from trainer.ranks import Ranks

MICRO_BATCH, MICRO_BATCH_TOKENS = 256, 65_536
"""Sequences and tokens of a forward pass; all sequences of a step share their prompts."""


class RecordedScreens:
    """In-memory store: recorded screens and observations of played episodes."""

    def __init__(self, recording: Recording, renderer: Renderer) -> None:
        self.images = recording.images
        self.renderer = renderer
        self.observations: dict[str, list[Observation]] = {}
        self.encoder = Collator(renderer)
        self.encoded: dict[bytes, ModelImage] = {}

    def steps_many(self, ids: Sequence[str]) -> dict[str, list[Observation]]:
        """Return the observations of several trajectories."""
        return {identity: self.observations[identity] for identity in ids}

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        """Return screenshots by sha256."""
        return {ref.sha256: self.images[ref.sha256] for ref in refs}

    def image_of(self, sha256: str) -> ModelImage:
        """Return a screenshot as model input."""
        return self.image_in(self.images[sha256])

    def image_in(self, data: bytes) -> ModelImage:
        """Return a screenshot's bytes as model input, encoded once."""
        if data not in self.encoded:
            self.encoded[data] = self.encoder.encode(data)
        return self.encoded[data]


class ImageKeepingCollator(Collator):
    """Trainer's collator with a cache of encoded screens."""

    def __init__(self, renderer: Renderer, screens: RecordedScreens) -> None:
        super().__init__(renderer, RowKinds(extended=True, masked=True))
        self.screens = screens

    def encode(self, data: bytes) -> ModelImage:
        """Return a screenshot as model input."""
        return self.screens.image_in(data)


class InProcessLearner(Learner):
    """Trainer's learner without sharding."""

    scorer: PrefixScorer

    def __init__(
        self,
        folder: Path,
        renderer: Renderer,
        settings: Trainer,
        screens: RecordedScreens,
        rules: TrainingRules = DART,
    ) -> None:
        self.settings = settings
        self.rules = rules
        self.ranks = Ranks(0, 1, torch.device("cpu"))
        self.collator = ImageKeepingCollator(renderer, screens)
        self.scorer = scorer_of(folder, renderer)
        self.reference = scorer_of(folder, renderer).requires_grad_(False) if settings.kl_beta else None
        self.critic = critic.build(self.scorer, rules, self.ranks)
        # The optimizer of Learner, which is made of sharded parameters there.
        self.optimizer = torch.optim.AdamW(
            self.scorer.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True
        )


def scorer_of(folder: Path, renderer: Renderer) -> PrefixScorer:
    """Return the policy of a Hugging Face directory."""
    return PrefixScorer(model.load(folder, renderer, torch.device("cpu")).policy, renderer).eval()


class LocalPolicy:
    """Answers action requests with the weights of one version."""

    def __init__(self, renderer: Renderer, scorer: PrefixScorer, screens: RecordedScreens, worker_id: str) -> None:
        self.renderer = renderer
        self.sampler = Sampler(scorer, renderer, screens.image_of)
        self.worker_id = worker_id
        self.version = 0

    def answers(self, generator: torch.Generator) -> Answer:
        """Return the policy as a function of requests, sampling with ``generator``."""

        def answer(requests: Sequence[ActionRequest]) -> list[ActionResponse]:
            prompts = [self.renderer.prompt(request.turns) for request in requests]
            made = self.sampler.answer(prompts, requests[0].sampling, generator)
            return [self.response(*one) for one in zip(requests, prompts, made, strict=True)]

        return answer

    def response(self, request: ActionRequest, prompt: Prompt, made: Generation) -> ActionResponse:
        """Return a generation as the rollout worker sends it."""
        return ActionResponse(
            request_id=request.request_id,
            trajectory_id=request.trajectory_id,
            step=request.step,
            text=self.renderer.text(made.tokens),
            tokens=made.tokens,
            logprobs=made.logprobs,
            entropies=made.entropies,
            versions=[VersionSpan(version=self.version, start=0, end=len(made.tokens))],
            prompt_tokens=len(prompt.token_ids),
            prompt_sha=prompt.sha,
            worker_id=self.worker_id,
            queue_ms=0.0,
            generate_ms=0.0,
        )


class LocalWorkers:
    """Rollout workers, each with the weights that it has switched to, rounded as they are published.

    A trajectory stays with its worker. One worker of unrounded weights shares them with the trainer.
    """

    def __init__(self, config: Config, folder: Path, newest: LocalPolicy, screens: RecordedScreens) -> None:
        self.newest = newest
        self.width = config.rollout.roll_width
        self.dtype = getattr(torch, config.trainer.publish.dtype)
        self.workers = [
            LocalPolicy(newest.renderer, scorer_of(folder, newest.renderer), screens, f"rollout-{number}")
            for number in range(config.rollout.workers)
        ]
        if len(self.workers) == 1 and self.dtype == torch.float32:
            self.workers = [newest]
        for worker in self.workers:
            self.switch(worker)

    def roll(self) -> list[LocalPolicy]:
        """Switch workers to the newest version, at most as many as may switch at once; return these."""
        outdated = [worker for worker in self.workers if worker.version < self.newest.version or worker is self.newest]
        for worker in outdated[: self.width]:
            self.switch(worker)
        return outdated[: self.width]

    @torch.no_grad()
    def switch(self, worker: LocalPolicy) -> None:
        """Give a worker the newest weights."""
        worker.version = self.newest.version
        if worker is not self.newest:
            pairs = zip(worker.sampler.scorer.parameters(), self.newest.sampler.scorer.parameters(), strict=True)
            for own, newest in pairs:
                own.copy_(newest.to(self.dtype))

    def answers(self, generator: torch.Generator) -> Answer:
        """Return the workers as a function of requests."""
        policies = [worker.answers(generator) for worker in self.workers]
        homes: dict[str, int] = {}

        def answer(requests: Sequence[ActionRequest]) -> list[ActionResponse]:
            parts: defaultdict[int, list[ActionRequest]] = defaultdict(list)
            for request in requests:
                parts[homes.setdefault(request.trajectory_id, len(homes) % len(policies))].append(request)
            made = {one.request_id: one for home, part in parts.items() for one in policies[home](part)}
            return [made[request.request_id] for request in requests]

        return answer


class LearningCircle:
    """Dispatch, difficulty, budgets and groups in memory; episodes and optimizer steps alternate.

    ``seed`` determines task order and sampling; the policy starts from ``folder``.
    """

    def __init__(self, config: Config, tasks: TaskSet, recording: Recording, folder: Path, seed: int) -> None:
        self.rules = bind_training(config)
        self.config = config = seed_config(config, seed)
        self.tasks = tasks
        self.recording = recording
        self.renderer = renderer_of(folder, config.policy)
        self.screens = RecordedScreens(recording, self.renderer)
        self.learner = InProcessLearner(folder, self.renderer, config.trainer, self.screens, self.rules)
        self.reader = GroupReader(self.screens, self.renderer, config.policy)
        self.policy = LocalPolicy(self.renderer, self.learner.scorer, self.screens, "newest")
        self.workers = LocalWorkers(config, folder, self.policy, self.screens)
        self.answer = self.workers.answers(torch.Generator().manual_seed(seed))
        self.circle = InMemoryCircle(self.config, tasks)
        self.memory = SuccessMemory()
        self.memories: dict[str, Any] = {}
        self.orders: list[RolloutOrder] = []
        self.groups: list[ReadyGroup] = []
        self.metrics: list[dict[str, float]] = []
        self.episodes = self.consumed = self.stale = 0
        if wants_demonstrations(config):
            self.demonstrate()
        self.publish_weights()
        for worker in self.workers.workers:
            self.announce(worker)

    def demonstrate(self) -> None:
        """Add a demonstration of each training task, for pool or recipe."""
        for task in self.tasks.train:
            order = single_order(task, "demonstration", 0, Sampling())
            self.record(play_demonstration(self.recording, self.config.policy, order, task.max_steps))

    def run(self, episodes: int) -> None:
        """Play and train until ``episodes`` training episodes have ended in total."""
        while self.episodes < episodes:
            self.roll()
            self.circle.settle()
            self.orders += self.circle.poll(rollout_orders.TOPIC.name)
            batch, self.orders = self.orders[: self.config.env.slots], self.orders[self.config.env.slots :]
            if not batch:
                raise RuntimeError("dispatch orders nothing, and nothing is under way")
            for observations in play([self.begin(order) for order in batch], self.answer):
                self.record(observations)
            self.episodes += len(batch)
            self.circle.settle()
            self.train()

    def roll(self) -> None:
        """Switch rollout workers."""
        for worker in self.workers.roll():
            self.announce(worker)

    def announce(self, worker: LocalPolicy) -> None:
        """Announce the version that a rollout worker serves."""
        event = WeightsServing(worker_id=worker.worker_id, version=worker.version, since_ms=0, alive_ms=0)
        self.circle.publish(weights_serving.TOPIC.name, worker.worker_id, event)

    def begin(self, order: RolloutOrder) -> RecordedEpisode:
        """Return the episode of an order."""
        limit = self.tasks.get(order.task_id).max_steps
        episode = RecordedEpisode.begin(self.recording, self.config.policy, order, limit)
        if order.guide is not None:
            source = order.guide.trajectory_id
            episode.be_guided(recorded_answers(source, self.screens.observations.get(source, [])))
        return episode

    def record(self, observations: list[Observation]) -> None:
        """Store and announce a trajectory, as the recorder does."""
        trajectory = summarize(observations)
        self.screens.observations[trajectory.trajectory_id] = observations
        self.circle.publish(trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)

    def train(self) -> None:
        """Make a step of every ``groups_per_step`` fresh groups, or as a recipe fills one; keep the rest."""
        for group in self.circle.poll(curated.TOPIC.name):
            self.consumed += 1
            if group_staleness(group, self.policy.version) > self.config.curation.max_staleness:
                self.stale += 1
                continue
            self.groups.append(self.reader.read(group))
            if self.is_full():
                groups, self.groups = self.groups, []
                self.step(self.rules.cut(groups, tokens_of(groups)) if self.rules.cut else groups)

    def is_full(self) -> bool:
        """Return whether the gathered groups make a step, as the trainer's feed decides."""
        size = self.config.trainer.groups_per_step
        if self.rules.is_full is None:
            return len(self.groups) == size
        most = group_capacity(size, self.config.curation.max_staleness)
        return self.rules.is_full(tokens_of(self.groups)) or len(self.groups) >= most

    def step(self, groups: Sequence[ReadyGroup]) -> None:
        """Make one optimizer step with its imitation; announce the version."""
        settings, version = self.config.trainer, self.policy.version
        batch, start = [ready.group for ready in groups], StepStart(version + 1, self.config.curation.dispatch.seed)
        imitation = plan_imitation(self.memory, settings, self.rules, self.memories, start)
        past = self.rules.replay(self.memories, batch, start) if self.rules.replay else []
        beside = [self.reader.read(group) for group in imitation.beside]
        trained = [*groups, *(self.reader.read(group) for group in replay_group(version + 1, past))]
        result = self.learner.learn(trained, version, never_stop, beside, is_pretraining(self.rules, start))
        if not result.updated:
            self.publish_weights()
            return
        for group in imitation.phase:
            self.learner.imitate([self.reader.read(group)])
        if self.rules.remember:
            self.rules.remember(self.memories, batch)
        if kept := history_limit(settings):
            self.memory = self.memory.after_step(batch, kept)
        self.metrics.append({**result.metrics, "sequences": result.sequences, "updates": result.updates})
        self.policy.version += 1
        self.publish_weights()

    def publish_weights(self) -> None:
        """Announce the present weights."""
        version = self.policy.version
        event = WeightVersion(
            model_id="in-process",
            version=version,
            uri="memory://",
            sha256="",
            train_step=version,
            epoch=1,
            groups_consumed=self.consumed,
        )
        self.circle.publish(weights.TOPIC.name, "", event)


def seed_config(config: Config, seed: int) -> Config:
    """Return a configuration with dispatch seeded by ``seed`` and large forward passes."""
    replace = msgspec.structs.replace
    dispatch = replace(config.curation.dispatch, seed=seed)
    trainer = replace(config.trainer, micro_batch=MICRO_BATCH, micro_batch_tokens=MICRO_BATCH_TOKENS)
    return replace(config, trainer=trainer, curation=replace(config.curation, dispatch=dispatch))
