"""Episodes on recorded problems, in batches, with the env worker's state machine, prompts and summaries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.learning.screens import START, RecordedState, Recording
from dart_streams.actions import Click
from dart_streams.actions.recorded import RecordedAnswer
from dart_streams.config import Policy
from dart_streams.config.tasks import Task
from dart_streams.episodes import guidance, prompts
from dart_streams.episodes.episode import Episode, EpisodeLimits, Evaluate, Execute, Move, RequestAction, Stop
from dart_streams.screens import smart_resize
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.values import Purpose, Sampling
from workers.env.environment import Size, rescale
from workers.env.episode_runner import LOOP_LIMIT, REQUEST_ATTEMPTS

Answer = Callable[[Sequence[ActionRequest]], list[ActionResponse]]
"""Policy that answers requests of equal sampling parameters."""


@dataclass
class RecordedEpisode:
    """A running episode on a recorded problem."""

    recording: Recording
    policy: Policy
    order: RolloutOrder
    episode: Episode
    at: str = START
    reward: float = 0.0

    @classmethod
    def begin(cls, recording: Recording, policy: Policy, order: RolloutOrder, max_steps: int) -> "RecordedEpisode":
        """Return the episode of an order at its first screen."""
        limits = EpisodeLimits(
            max_steps=min(order.max_steps, max_steps), request_attempts=REQUEST_ATTEMPTS, loop_limit=LOOP_LIMIT
        )
        problem = recording.problems[order.task_id]
        episode = Episode(
            order=order, trajectory_id=f"t-{order.order_id}", env_host="recorded", limits=limits, policy=policy
        )
        first = problem.states[START].screen
        return cls(recording, policy, order, episode.observe(first, problem.instruction, 0))

    @property
    def state(self) -> RecordedState:
        """Recording of the present state."""
        return self.recording.problems[self.order.task_id].states[self.at]

    @property
    def screen_size(self) -> Size:
        """Size of the screen."""
        return self.state.screen.width, self.state.screen.height

    @property
    def policy_size(self) -> Size:
        """Size of the screen as the policy sees it."""
        return smart_resize(*self.screen_size, self.policy.min_pixels, self.policy.max_pixels)

    def request(self) -> ActionRequest:
        """Return the request for the next action."""
        self.episode = self.episode.mark_published()
        turns = prompts.prompt_turns(self.episode.observations, self.policy)
        return self.episode.request(0, turns, 0, 0)

    def respond(self, response: ActionResponse) -> list[Observation] | None:
        """Apply a response; return all observations if the episode ends."""
        self.episode, move = guidance.apply_response(self.episode, response, 0)
        return self.follow(move)

    def be_guided(self, answers: tuple[RecordedAnswer, ...]) -> None:
        """Give the episode the recorded answers of its order's guide."""
        self.episode = msgspec.structs.replace(self.episode, recording=answers)

    def play_prefix(self) -> list[Observation] | None:
        """Execute the recorded answers before the policy acts; return all observations if the episode ends."""
        while True:
            recorded = guidance.next_recorded(self.episode.mark_published())
            if recorded is None:
                return None
            self.episode, move = recorded
            if (observations := self.follow(move)) is not None:
                return observations

    def demonstrate(self) -> list[Observation] | None:
        """Apply the oracle's action; return all observations if the episode ends."""
        self.episode = self.episode.mark_published()
        if self.state.oracle is None:
            return self.follow(Evaluate(cut=False))
        action = rescale(Click(*self.state.oracle), self.screen_size, self.policy_size)
        self.episode, move = self.episode.demonstrate(action)
        return self.follow(move)

    def follow(self, move: Move) -> list[Observation] | None:
        """Follow the episode's decisions until it requests an action or ends."""
        while not isinstance(move, RequestAction):
            if isinstance(move, Stop):
                return [*self.episode.published, self.episode.last_observation(move.end, 0)]
            if isinstance(move, Evaluate):
                move = Stop(self.episode.end_evaluated(move, 0.0 if move.gave_up else self.reward))
            else:
                move = self.execute(move)
        return None

    def execute(self, move: Execute) -> Move:
        """Execute an action on the recorded page."""
        action = rescale(move.action, self.policy_size, self.screen_size)
        landing = self.recording.act(self.order.task_id, self.at, action)
        over = landing.done or self.episode.on_last_step
        self.reward = landing.reward
        if not over:
            assert landing.state is not None, "each state within the step limit is recorded"
            self.at = landing.state
        self.episode = self.episode.observe(None if over else self.state.screen, "", 0)
        return self.episode.after_screen(landing.done)


def play(episodes: Sequence[RecordedEpisode], answer: Answer) -> list[list[Observation]]:
    """Play episodes to their ends, one step of all at a time; return the observations of each."""
    begun = enumerate(episode.play_prefix() for episode in episodes)
    ended = {number: observations for number, observations in begun if observations is not None}
    while waiting := [number for number in range(len(episodes)) if number not in ended]:
        responses = answer([episodes[number].request() for number in waiting])
        for number, response in zip(waiting, responses, strict=True):
            observations = episodes[number].respond(response)
            if observations is not None:
                ended[number] = observations
    return [ended[number] for number in range(len(episodes))]


def play_demonstration(recording: Recording, policy: Policy, order: RolloutOrder, max_steps: int) -> list[Observation]:
    """Return the observations of an order that the oracle plays."""
    episode = RecordedEpisode.begin(recording, policy, order, max_steps)
    while (observations := episode.demonstrate()) is None:
        pass
    return observations


def single_order(task: Task, purpose: Purpose, number: int, sampling: Sampling) -> RolloutOrder:
    """Return an order of one rollout."""
    name = f"{purpose}-{task.task_id}-{number}"
    return RolloutOrder(
        order_id=name,
        group_id=name,
        group_size=1,
        sample=0,
        attempt=0,
        task_id=task.task_id,
        max_steps=task.max_steps,
        purpose=purpose,
        sampling=sampling,
        after_version=0,
    )
