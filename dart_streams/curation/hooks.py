"""Hook points of the data manager: what a recipe may replace, with each one's signature.

A recipe's module ``rules`` has ``RULES``, a :class:`Rules` of the functions that it replaces. Each is pure. Its first
argument, :class:`Own`, has the settings of the recipe and what it remembers in this agent. DART's own rules are
:data:`dart_streams.curation.recipes.DART`; :func:`dart_streams.curation.recipes.bind_rules` puts both together.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dart_streams.curation.members import Finish, GroupMember, PooledSuccess
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import TaskDifficulty
from topics.trajectories import Trajectory

if TYPE_CHECKING:  # It reads the rules.
    from dart_streams.curation.task_scheduler import TaskState

Memories = dict[str, Any]
"""What each recipe remembers, by its name: a part of an agent's state, stored and replayed with it."""


class Own(NamedTuple):
    """A recipe's ``settings`` (those of DART are :class:`dart_streams.config.Curation`), and its ``memory``.

    ``load`` returns what the rule of this name has read.
    """

    settings: Any
    memory: Any
    load: Callable[[], Any] = lambda: None


class Forgetful(msgspec.Struct):
    """The memory of a recipe that remembers nothing."""


class TaskFinish(NamedTuple):
    """A counted finish, as dispatch gives it to ``remember``; ``ends_group`` if it is the last of its group.

    ``rewarded`` is false after the fault of a last attempt. ``guided`` if its order had recorded actions
    or a person took steps, so that ``success`` is not the policy's alone.
    """

    task_id: str
    group: int
    success: bool
    ends_group: bool
    rewarded: bool = True
    trajectory_id: str = ""
    guided: bool = False


class DemonstrationFinish(NamedTuple):
    """A demonstration that succeeded, as dispatch gives it to ``remember``."""

    task_id: str
    trajectory_id: str


class ExplorationFinish(NamedTuple):
    """An exploration that found start states of its task, as dispatch gives it to ``remember``.

    ``starts`` are the numbers of its actions that lead to them.
    """

    task_id: str
    trajectory_id: str
    starts: list[int]


class Turn(NamedTuple):
    """A task's turn in a pass over all tasks. ``task`` has its budget and recent finishes.

    ``max_steps`` is the step limit that its group would have.
    """

    task_id: str
    task: "TaskState"
    pass_index: int
    max_steps: int = 0


class Admission(NamedTuple):
    """What decides on another group: open groups and orders, and curated groups that are not trained on yet.

    ``curated_share`` is the share of recently closed groups that were curated; ``groups_per_step`` and
    ``max_staleness`` are the settings, ``backlog`` the number of open orders that keeps every slot busy.
    """

    open_groups: int
    open_orders: int
    unconsumed: int
    curated_share: Fraction
    groups_per_step: int
    max_staleness: int
    backlog: int


StepAdvantages = Callable[[Any, Sequence[GroupMember], Sequence[float], Sequence[float]], list[list[float]]]
DEFAULT: Any = None
"""Leaves a rule as it is."""


class Rules(NamedTuple):
    """The rules that a recipe replaces, and in a bound form all rules of a run.

    Two recipes of one run can't replace the same rule. The exceptions are ``order``, ``eligible_tasks`` and
    ``shape_rewards``: each recipe changes the last argument in turn, in the order in which the run names them.
    Agents: ``success_rate`` is used by difficulty; ``rollouts`` and ``step_limit`` by budget; ``eligible_tasks``,
    ``task_weight``, ``admits`` and ``order`` by dispatch; the others by groups, ``reward`` by difficulty too, and
    ``further_orders`` and
    ``start_states`` by difficulty alone.
    """

    success_rate: Callable[[Any, Sequence[float]], float | None] = DEFAULT
    """(rewards): a task's success rate from the rewards of its recent finishes, oldest first."""
    rollouts: Callable[[Any, TaskDifficulty], tuple[int, str]] = DEFAULT
    """(difficulty): the rollouts of a task's next group, and the reason as text. Dispatch orders at most eight times
    ``curation.budget.base``."""
    step_limit: Callable[[Any, TaskDifficulty, int], tuple[int, str]] = DEFAULT
    """(difficulty, limit): the step limit of a rollout, at most the task's ``limit``, and the reason as text."""
    eligible_tasks: Callable[[Any, int, dict[str, int], tuple[str, ...]], tuple[str, ...]] = DEFAULT
    """(group, limits, task_ids): the tasks that group number ``group`` may have; ``limits`` has their step limits."""
    task_weight: Callable[[Any, Turn], float] = DEFAULT
    """(turn): the probability that a task takes its turn; at 0 it is passed over."""
    admits: Callable[[Any, Admission], bool] = DEFAULT
    """(admission): whether another group may be opened (mode ``rollout-wise``)."""
    order: Callable[[Any, RolloutOrder], RolloutOrder] = DEFAULT
    """(order): what an order asks for."""
    further_orders: Callable[[Any, Trajectory], list[RolloutOrder]] = DEFAULT
    """(trajectory): orders beside those of dispatch, after any trajectory; none of them has the purpose ``train``."""
    start_states: Callable[[Any, Trajectory], list[int]] = DEFAULT
    """(trajectory): for an exploration, before ``further_orders``: the numbers of its actions that lead to start states
    of its task. Dispatch gets them as an :class:`ExplorationFinish`."""
    reward: Callable[[Any, Trajectory], float | None] = DEFAULT
    """(trajectory): the judged reward; None if its outcome carries none. Raises InvalidEvent for an invalid one."""
    shape_rewards: Callable[[Any, Sequence[GroupMember], Sequence[float]], list[float]] = DEFAULT
    """(members, rewards): the rewards behind the advantages. Members are published with their own rewards."""
    keep_group: Callable[[Any, Sequence[GroupMember], Sequence[float]], bool] = DEFAULT
    """(members, rewards): whether a group of these shaped rewards is trained on."""
    advantages: Callable[[Any, Sequence[GroupMember], Sequence[float]], list[float]] = DEFAULT
    """(members, rewards): the advantage of each member, from its shaped reward."""
    step_advantages: StepAdvantages = DEFAULT
    """(members, rewards, advantages): each member's advantage of each step; empty lists if steps are not credited."""
    select_steps: Callable[[Any, Sequence[Finish]], list[list[int]]] = DEFAULT
    """(rollouts): the indexes of each rollout's steps to train on, in order."""
    pooled: Callable[[Any, Trajectory, PooledSuccess], PooledSuccess] = DEFAULT
    """(trajectory, success): what the pool stores of a success of a rollout or a demonstration."""
    remember: Callable[[Any, Any], None] = DEFAULT
    """(event): changes the memory, before the decision on the event: in difficulty and groups for each counted
    :class:`Trajectory`, with the reward of the rule ``reward``, and each demonstration, which may repeat; in budget for
    each :class:`TaskDifficulty`; in dispatch for each :class:`TaskFinish`, :class:`DemonstrationFinish` and
    :class:`ExplorationFinish`, and for each :class:`RolloutOrder` after the decision."""
    demonstrations: bool = False
    """Whether a run orders a demonstration of each training task for the recipe, also without the pool."""
    memory: type[msgspec.Struct] = Forgetful
    """The type of the memory; it begins with its defaults. Each agent has its own, of what that agent reads."""
    load: Callable[[Any], Any] = DEFAULT
    """(settings): what the other rules need of a file that the settings name. It is called once, before the first
    event, and is the only rule that may read a file. Raises ConfigError."""


PASSED_ON = frozenset(("order", "eligible_tasks", "shape_rewards"))
"""Rules that change their last argument, so that several recipes may have one."""
