"""Discrete-event simulation of a deployment: slots, rollout workers and trainer around the real reducers.

The data manager's code decides what is ordered, curated and admitted; times are drawn from the workload.
:class:`Overheads` are measured in real runs. Pure and deterministic by seed.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from benchmarks.modes import workload_of
from benchmarks.utilization import Account, OptimizerStep, ServedRequest
from dart_streams.bus.clients import hash_of
from dart_streams.bus.sticky_assignment import PartitionClaim, Subscriber, assign_partitions
from dart_streams.config import Config
from dart_streams.config.files import with_partitions
from dart_streams.config.tasks import TaskSet
from dart_streams.config.workload import Course, draw_course, typical_steps
from dart_streams.curation import groups
from dart_streams.curation.in_memory import InMemoryCircle
from dart_streams.curation.staleness import group_staleness
from dart_streams.episodes.episode import new_trajectory_id
from topics import action_requests, curated, rollout_orders, trajectories, weights, weights_serving
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import OutcomeKind
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing


class Overheads(msgspec.Struct, frozen=True):
    """Overheads in simulated seconds: ``step_s`` of a step, ``order_s`` from an episode's end to the next start."""

    step_s: float = 0.0
    order_s: float = 0.0


Way = Literal["trajectory", "overflow", "load"]


class Routing(msgspec.Struct, frozen=True):
    """The worker of a request: that of its trajectory, or one with fewer requests.

    ``trajectory`` is the deployment's way: partitions by key, and sticky assignment. With ``overflow`` a trajectory
    moves when its worker is full or switches and another has room, with ``load`` whenever another has fewer requests.
    ``slow`` is a factor of the first worker's generation times, ``cold`` one of the prefill at a worker that did not
    answer before.
    """

    by: Way = "trajectory"
    slow: float = 1.0
    cold: float = 1.0


def partition_owners(config: Config) -> list[int]:
    """Return the worker of each partition of action requests, as the members of a new group get them."""
    topic = action_requests.TOPIC
    numbers = range(with_partitions(config).bus.topics.partitions or topic.partitions)
    members = {str(worker): Subscriber((topic.name,), PartitionClaim()) for worker in range(config.rollout.workers)}
    assigned = assign_partitions({topic.name: numbers}, members)
    owners = {number: int(name) for name, owned in assigned.items() for number in owned.get(topic.name, ())}
    return [owners[number] for number in numbers]


class SimulatedWorker:
    """A rollout worker: version, running and waiting requests, pauses."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.version = 0
        self.under_way = 0
        self.queue: deque[SimulatedRollout] = deque()
        self.switching = False
        self.paused_s = 0.0
        self.resumes_at = 0.0

    @property
    def load(self) -> int:
        """Running and waiting requests."""
        return self.under_way + len(self.queue)


class SimulatedRollout:
    """A running episode in a slot."""

    def __init__(self, order: RolloutOrder, slot: int, worker: SimulatedWorker, course: Course, now: float) -> None:
        self.order = order
        self.slot = slot
        self.worker = worker
        self.course = course
        self.began = now
        self.steps = 0
        self.entropies: list[float] = []
        self.version_min: int | None = None
        self.version_max: int | None = None
        self.asked = 0.0
        self.arrived = 0.0
        self.moved = False


class Simulation:
    """One deployment; :meth:`run` simulates N seconds."""

    def __init__(
        self,
        config: Config,
        tasks: TaskSet,
        seed: int,
        overheads: Overheads | None = None,
        routing: Routing | None = None,
    ) -> None:
        self.config = config
        self.tasks = tasks
        self.workload = workload_of(config)
        self.overheads = overheads or Overheads()
        self.routing = routing or Routing()
        self.owners = partition_owners(config)
        self.rng = random.Random(seed)
        self.curator = InMemoryCircle(config, tasks)
        self.places = config.rollout.max_in_flight
        self.workers = [SimulatedWorker(number) for number in range(config.rollout.workers)]
        slots = config.env.workers * config.env.slots
        self.account = Account(slots, len(self.workers), self.places)
        self.free = list(range(slots))[::-1]
        self.orders: deque[RolloutOrder] = deque()
        self.playing: dict[SimulatedRollout, None] = {}
        self.trainer = SimulatedTrainer(self)
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = itertools.count()

    def run(self, seconds: float) -> Account:
        """Simulate ``seconds``; return the account, running episodes included."""
        self.trainer.publish()
        for worker in self.workers:
            self.serve(worker)
        while self._due and self._due[0][0] <= seconds:
            self.now, _, act, arguments = heapq.heappop(self._due)
            act(*arguments)
        self.account.episodes += [(rollout.began, seconds) for rollout in self.playing]
        counts = self.curator.states[groups.NAME].counts
        self.account.left_out = counts.stale, counts.stale_steps
        return self.account

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Schedule an event."""
        heapq.heappush(self._due, (self.now + seconds, next(self._number), act, arguments))

    def publish(self, topic: str, event: Any) -> None:
        """Publish an event and apply the agents' decisions."""
        self.curator.publish(topic, "", event)
        self.curator.settle()
        for group in self.curator.poll(curated.TOPIC.name):
            self.trainer.take(group)
        orders = self.curator.poll(rollout_orders.TOPIC.name)
        self.curator.delete_read()
        if orders:
            self.orders.extend(orders)
            self.after(self.overheads.order_s, self.fill)

    def fill(self) -> None:
        """Start waiting orders in free slots."""
        while self.orders and self.free:
            self.start(self.orders.popleft(), self.free.pop())

    def start(self, order: RolloutOrder, slot: int) -> None:
        """Start an episode with its reset."""
        typical = typical_steps(self.tasks.get(order.task_id).page) or 1
        drawn = draw_course(self.workload, order.task_id, typical, self.rng)
        rollout = SimulatedRollout(order, slot, self.home(), drawn, self.now)
        self.playing[rollout] = None
        self.call(rollout, 0, self.workload.reset_s.draw(self.rng), self.ask)

    def home(self) -> SimulatedWorker:
        """Return the worker whose partition a new trajectory's requests go to."""
        identity = new_trajectory_id(int(self.now * 1000), self.rng.randbytes(10))
        return self.workers[self.owners[hash_of(identity.encode()) % len(self.owners)]]

    def call(
        self,
        rollout: SimulatedRollout,
        number: int | None,
        seconds: float,
        then: Callable[[SimulatedRollout], None],
    ) -> None:
        """Call the environment; a hanging call ends the episode at its timeout."""
        if number is not None and number == rollout.course.hangs_at:
            seconds, then = self.workload.call_s, self.fault
        self.after(seconds, then, rollout)

    def ask(self, rollout: SimulatedRollout) -> None:
        """Request the next action, or evaluate the episode at its end."""
        if rollout.steps >= rollout.course.steps or rollout.steps >= rollout.order.max_steps:
            self.call(rollout, None, self.workload.evaluate_s.draw(self.rng), self.judge)
            return
        rollout.asked = self.now
        self.after(self.overheads.step_s, self.queue, rollout)

    def queue(self, rollout: SimulatedRollout) -> None:
        """Start a request, or queue it while the worker is full."""
        rollout.arrived = self.now
        self.route(rollout)
        if rollout.worker.under_way >= self.places:
            rollout.worker.queue.append(rollout)
        else:
            self.generate(rollout)

    def route(self, rollout: SimulatedRollout) -> None:
        """Choose the worker of a request."""
        rollout.moved, present, by = False, rollout.worker, self.routing.by
        if by == "trajectory" or (by == "overflow" and present.load < self.places and not present.switching):
            return
        other = min(self.workers, key=lambda worker: (worker.switching and by == "overflow", worker.load))
        has_room = other.load < self.places and not other.switching
        if has_room if by == "overflow" else other.load < present.load:
            rollout.worker, rollout.moved = other, rollout.steps > 0

    def generate(self, rollout: SimulatedRollout) -> None:
        """Start a generation; pauses extend it."""
        worker, engine = rollout.worker, self.workload.generation
        worker.under_way += 1
        tokens = engine.tokens.draw(self.rng)
        if rollout.moved:
            engine = msgspec.structs.replace(engine, prefill_s=engine.prefill_s * self.routing.cold)
        takes_s = engine.takes_s(tokens, (worker.under_way - 1) / self.places)
        takes_s *= self.routing.slow if worker.number == 0 else 1.0
        if rollout.version_min is None:
            rollout.version_min = worker.version
        waits_s = max(0.0, worker.resumes_at - self.now)
        self.after(waits_s + takes_s, self.answer, rollout, self.now + waits_s, worker.paused_s)

    def answer(self, rollout: SimulatedRollout, began: float, paused_s: float) -> None:
        """End a generation unless a pause extended it; then execute the action."""
        worker = rollout.worker
        if worker.paused_s > paused_s:
            self.after(worker.paused_s - paused_s, self.answer, rollout, began, worker.paused_s)
            return
        worker.under_way -= 1
        rollout.version_max = worker.version
        self.account.generated.append((worker.number, began, self.now))
        self.account.requests.append(
            ServedRequest(self.now, began - rollout.arrived, self.now - rollout.asked, rollout.moved)
        )
        if worker.queue:
            self.generate(worker.queue.popleft())
        self.call(rollout, rollout.steps + 1, self.workload.settle_s.draw(self.rng), self.acted)

    def acted(self, rollout: SimulatedRollout) -> None:
        """Record an executed action."""
        rollout.steps += 1
        rollout.entropies.append(self.rng.random())
        self.account.actions.append(self.now)
        self.ask(rollout)

    def judge(self, rollout: SimulatedRollout) -> None:
        """End an episode with its reward."""
        cut = rollout.steps < rollout.course.steps
        won = rollout.course.success and not cut
        self.end(rollout, "truncated" if cut else "success" if won else "failure", float(won))

    def fault(self, rollout: SimulatedRollout) -> None:
        """End an episode with an environment fault."""
        self.end(rollout, "env_error", None)

    def end(self, rollout: SimulatedRollout, outcome: OutcomeKind, reward: float | None) -> None:
        """Free the slot and publish the trajectory."""
        del self.playing[rollout]
        self.account.episodes.append((rollout.began, self.now))
        if reward is not None:
            self.account.finished.append((self.now, rollout.steps))
        self.free.append(rollout.slot)
        if self.orders:
            self.after(0.0, self.fill)
        order = rollout.order
        trajectory = Trajectory(
            trajectory_id=order.order_id,
            order_id=order.order_id,
            group_id=order.group_id,
            group_size=order.group_size,
            attempt=order.attempt,
            task_id=order.task_id,
            purpose="train",
            outcome=outcome,
            reward=reward,
            steps=rollout.steps,
            step_entropies=rollout.entropies,
            version_min=rollout.version_min,
            version_max=rollout.version_max,
            started_ms=int(rollout.began * 1000),
            finished_ms=int(self.now * 1000),
        )
        self.publish(trajectories.TOPIC.name, trajectory)

    def roll(self) -> None:
        """Start switches of outdated workers, within the roll width."""
        switching = sum(worker.switching for worker in self.workers)
        for worker in self.workers:
            if switching >= self.config.rollout.roll_width:
                return
            if worker.version < self.trainer.version and not worker.switching:
                switching += 1
                worker.switching = True
                worker.paused_s += self.workload.switch_s
                worker.resumes_at = self.now + self.workload.switch_s
                self.after(self.workload.switch_s, self.switched, worker, self.trainer.version)

    def switched(self, worker: SimulatedWorker, version: int) -> None:
        """Serve a new version."""
        worker.version, worker.switching = version, False
        self.serve(worker)
        self.roll()

    def serve(self, worker: SimulatedWorker) -> None:
        """Announce a worker's version."""
        event = WeightsServing(worker_id=f"rollout-{worker.number}", version=worker.version, since_ms=0, alive_ms=0)
        self.publish(weights_serving.TOPIC.name, event)


class SimulatedTrainer:
    """Takes groups in order, drops stale ones, and makes a version of each batch."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.version = 0
        self.consumed = 0
        self.busy = False
        self.arrived: deque[CuratedGroup] = deque()
        self.chosen: list[CuratedGroup] = []

    def take(self, group: CuratedGroup) -> None:
        """Take a group; start a step if the batch is full."""
        self.arrived.append(group)
        self.compose()

    def compose(self) -> None:
        """Choose groups until a batch is full and start its step, unless one is running."""
        config = self.simulation.config
        while self.arrived and not self.busy:
            group = self.arrived.popleft()
            self.consumed += 1
            if group_staleness(group, self.version) <= config.curation.max_staleness:
                self.chosen.append(group)
            if len(self.chosen) >= config.trainer.groups_per_step:
                self.busy = True
                lasts_s = self.simulation.workload.optimizer_s.draw(self.simulation.rng)
                self.simulation.after(lasts_s, self.made, self.chosen, self.simulation.now, self.consumed)
                self.chosen = []

    def made(self, groups: list[CuratedGroup], began: float, consumed: int) -> None:
        """End a step: announce its version and start switches."""
        steps = sum(len(member.selected) for group in groups for member in group.members if member.source == "online")
        oldest = max((group_staleness(group, self.version) for group in groups), default=0)
        self.simulation.account.trained.append(OptimizerStep(self.simulation.now, began, steps, oldest))
        self.version += 1
        self.busy = False
        self.publish(consumed)
        self.simulation.roll()
        self.compose()

    def publish(self, consumed: int = 0) -> None:
        """Announce the newest version."""
        event = WeightVersion(
            model_id="simulated",
            version=self.version,
            uri="",
            sha256="",
            train_step=self.version,
            epoch=1,
            groups_consumed=consumed,
        )
        self.simulation.publish(weights.TOPIC.name, event)
