"""Whatever an environment returns, raises or does, its episode ends as a fault that names it, and nothing else ends."""

import asyncio
import contextlib
import functools
import io
import math
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import msgspec
import pytest
from PIL import Image

from dart_streams.actions import Action, Click, Type
from dart_streams.bus.codec import decode, encode
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests import events
from tests.unit.clockwork import Clockwork
from tests.unit.workers.env.episodes import TRAINER, EncodingLog, runner_of
from topics import observations
from topics.observations import EpisodeEnd
from topics.values import Purpose
from workers.env import fault_boundary
from workers.env.environment import EnvironmentFault, Screen
from workers.env.episode_runner import EpisodeRunner
from workers.env.fault_boundary import ContainedBackend
from workers.env.returned_values import checked_action, checked_reward, checked_screen

TASK = Task(environment="own", page="page", seed=3, max_steps=2, split="train")
SIDE = 64


def drawn(kind: str = "png", side: int = SIDE) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "white").save(buffer, kind)
    return buffer.getvalue()


PICTURE = drawn()
SCREEN = Screen(image=PICTURE, media_type="image/png", width=SIDE, height=SIDE, instruction="Click")


with_ = functools.partial(msgspec.structs.replace, SCREEN)


class Own:
    """A user's environment, and the backend that makes it; ``does`` replaces some of its calls."""

    def __init__(self, **does: Callable[[], Any]) -> None:
        self.does = does
        self.closed = False

    async def open(self, task: Task) -> "Own":
        return await self.do("open", self)

    async def reset(self, task: Task) -> Screen:
        return await self.do("reset", SCREEN)

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        return await self.do("step", SCREEN)

    async def evaluate(self) -> float:
        return await self.do("evaluate", 1.0)

    async def answer(self, text: str) -> None:
        await self.do("answer", None)

    async def give_up(self) -> float:
        return await self.do("give_up", 1.0)

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        while True:
            yield await self.do("demonstrate", Click(1, 1))

    async def close(self) -> None:
        self.closed = True
        await self.do("close", None)

    async def do(self, call: str, usual: Any) -> Any:
        if call not in self.does:
            return usual
        found = self.does[call]()
        return await found if asyncio.iscoroutine(found) else found


ORDER = events.rollout_order(task_id=TASK.task_id, purpose="train")


def runner(backend: Any, answer: str, log: ObservationLog) -> EpisodeRunner:
    config = parse({"env": {"backend": "simulated", "episode_timeout_s": 30.0}})
    return runner_of(config, backend, log, PolicyFunction(lambda _: answer, TRAINER))


async def play(backend: Any, answer: str = "Action: wait()", purpose: Purpose = "train") -> EpisodeEnd:
    """Play an episode, and return its end as whoever reads its record has it."""
    log = ObservationLog()
    await runner(backend, answer, log).run(msgspec.structs.replace(ORDER, purpose=purpose), TASK, lambda _: None)
    (shown,) = log.observations.values()
    read = [decode(observations.TOPIC, *encode(observations.TOPIC, one)[1:]) for one in shown]
    assert read == shown, "what is read is what was published"
    assert [one.end for one in read[:-1]] == [None] * (len(read) - 1)
    return cast(EpisodeEnd, read[-1].end)


def fails(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS = [
    *(ValueError("a\ud800b"), KeyError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()),
    *(asyncio.CancelledError(), StopIteration(), TimeoutError("late"), MemoryError(), RecursionError()),
    ExceptionGroup("both", [ValueError("one"), OSError("two")]),
    Wordless(),
    ValueError("x" * 3_000_000),
    AssertionError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["open", "reset", "step", "evaluate"])
async def test_an_error_of_any_kind_in_any_call_is_a_fault_that_names_both(call: str, error: BaseException):
    backend = Own(**{call: fails(error)})
    end = await play(backend)
    assert (end.kind, end.reward) == ("env_error", None)
    assert call in end.reason
    assert type(error).__name__ in end.reason or "was cancelled" in end.reason or "StopIteration" in end.reason
    assert len(end.reason) <= 2000
    assert backend.closed is (call != "open")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_errors_of_give_up_and_demonstrate_are_faults_those_of_close_not(error: BaseException):
    assert (await play(Own(give_up=fails(error)), "Action: call_user()")).kind == "env_error"
    assert (await play(Own(answer=fails(error)), "Action: finished(content='4')")).kind == "env_error"
    assert (await play(Own(answer=fails(error)), "Action: finished(content='')")).kind == "success"
    end = await play(Own(demonstrate=fails(error)), purpose="demonstration")
    assert (end.kind, "demonstrate" in end.reason) == ("env_error", True)
    assert (await play(Own(close=fails(error)))).kind == "success"


REWARDS = [
    *(None, math.nan, math.inf, -math.inf, -1, 1.7, 1.001, True, "1", b"1", [1.0], {}, 1j),
    *(Decimal("0.5"), object(), 10**400, SCREEN),
]


@pytest.mark.parametrize("reward", REWARDS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("call", ["evaluate", "give_up"])
async def test_a_reward_that_is_no_number_from_0_to_1_is_a_fault_that_names_it(call: str, reward: Any):
    end = await play(Own(**{call: lambda: reward}), "Action: call_user()" if call == "give_up" else "Action: wait()")
    assert (end.kind, end.reward) == ("env_error", None)
    assert end.reason.startswith(f"{call}() returned")


class Float32(float):
    """What numpy's are: of a type of their own, which no encoder of JSON knows."""


@pytest.mark.parametrize(
    ("reward", "wanted"), [(1, 1.0), (0, 0.0), (Float32(0.5), 0.5), (Fraction(1, 4), 0.25), (1.0 + 1e-12, 1.0)]
)
async def test_a_plain_number_of_another_type_is_a_reward(reward: Any, wanted: float):
    end = await play(Own(evaluate=lambda: reward))
    assert (type(checked_reward(reward)), end.reward) == (float, wanted)


def test_numpy_scalars_are_valid_values_and_arrays_are_not():
    numpy = pytest.importorskip("numpy")
    assert checked_reward(numpy.float32(1)) == checked_reward(numpy.float64(1)) == checked_reward(numpy.int64(1)) == 1.0
    shown = checked_screen(with_(width=numpy.int32(SIDE), done=numpy.bool_(True)))
    assert shown.done is True
    for wrong in (numpy.float32("nan"), numpy.float64(2), numpy.array([1.0]), numpy.array(1.0), numpy.bool_(True)):
        with pytest.raises(EnvironmentFault, match="a reward is a number"):
            checked_reward(wrong)


SCREENS = {
    "none": None,
    "a tuple": (PICTURE, "Click"),
    "a class": Screen,
    "no image": with_(image=None),
    "an image as a text": with_(image="iVBORw0KGgo="),
    "no bytes": with_(image=b""),
    "garbage": with_(image=b"\x00" * 1000),
    "truncated": with_(image=PICTURE[:-20]),
    "a flipped byte": with_(image=PICTURE[:50] + bytes([PICTURE[50] ^ 1]) + PICTURE[51:]),
    "another size": with_(width=SIDE + 1),
    "no size": with_(width=0, height=0),
    "a size below 0": with_(width=-SIDE),
    "a size that is no integer": with_(height=64.0),
    "an endless size": with_(height=10**9),
    "a size that is not": with_(height=None),
    "another type": with_(media_type="image/jpeg"),
    "no type": with_(media_type=None),
    "a type with half a character": with_(media_type="image/\ud83d"),
    "half a surrogate pair": with_(instruction="Click \ud83d"),
    "no instruction": with_(instruction=None),
    "an instruction as bytes": with_(instruction=b"Click"),
    "an endless instruction": with_(instruction="\u4e16" * 100_000),
    "done as a text": with_(done="no"),
    "done as none": with_(done=None),
}


@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS)
@pytest.mark.parametrize("call", ["reset", "step"])
async def test_what_is_no_screen_is_a_fault_that_names_it(call: str, screen: Any):
    end = await play(Own(**{call: lambda: screen}))
    assert (end.kind, end.reward) == ("env_error", None)
    assert end.reason.startswith(f"{call}() returned")


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "bmp"])
def test_an_image_of_any_kind_that_is_shown_is_a_screen(kind: str):
    assert checked_screen(with_(image=bytearray(drawn(kind)), media_type=f"image/{kind}")).image == drawn(kind)


def test_a_screen_without_an_image_is_one_only_at_the_end():
    assert checked_screen(with_(image=None, done=True)).image is None
    assert checked_screen(with_(image=None), imageless=True).image is None
    with pytest.raises(EnvironmentFault, match="image is None"):
        checked_screen(with_(image=None))


async def test_a_screen_may_change_its_size_in_mid_episode():
    """A phone that is turned: places of later answers are those of its new screen."""
    clicked: list[Action] = []
    turned = with_(image=drawn(side=2 * SIDE), width=2 * SIDE, height=2 * SIDE)

    class Turned(Own):
        async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
            clicked.append(action)
            return turned

    await play(Turned(), "Action: click(start_box='(9999,9999)')")
    assert clicked == [Click(SIDE - 1, SIDE - 1), Click(2 * SIDE - 1, 2 * SIDE - 1)]


ACTIONS = [
    *(None, "click", Click(None, 1), Click(1.5, 1), Click(1, 1, "none"), Click(1, 1, count=99)),  # type: ignore[arg-type]
    *(Type("\ud800"), Type(7), Click),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda value: type(value).__name__)
async def test_what_a_demonstration_yields_is_an_action_or_a_fault(action: Any):
    end = await play(Own(demonstrate=lambda: action), purpose="demonstration")
    assert (end.kind, end.reward) == ("env_error", None)
    assert end.reason.startswith(("demonstrate() yielded", "demonstrate() returned content"))


def test_an_action_of_a_demonstration_has_plain_integers():
    class Int64(int):
        pass

    action = checked_action(Click(Int64(3), Int64(-4)))
    assert (action, type(cast(Click, action).x)) == (Click(3, -4), int)


class Unlooked:
    """An environment of which even the look whether it has an oracle fails."""

    reset, step, close = Own.reset, Own.step, Own.close

    def __init__(self) -> None:
        self.does: dict[str, Any] = {}
        self.closed = False

    do = Own.do

    @property
    def demonstrate(self) -> Any:
        raise ValueError("not yet")

    give_up = demonstrate


class Synchronous(Own):
    def reset(self, task: Task) -> Screen:  # type: ignore[override]
        return SCREEN


@pytest.mark.parametrize(
    ("backend", "purpose", "words"),
    [
        (Own(open=lambda: None), "train", "reset() raised AttributeError"),
        (Own(open=object), "train", "reset() raised AttributeError"),
        (Own(open=Unlooked), "demonstration", "demonstrate() raised ValueError"),
        (Synchronous(), "train", "reset() raised TypeError"),
        (Own(open=lambda: Own(demonstrate=fails(StopAsyncIteration()))), "demonstration", "demonstrate() raised"),
    ],
)
async def test_what_is_no_environment_is_a_fault(backend: Any, purpose: Purpose, words: str):
    end = await play(backend, purpose=purpose)
    assert (end.kind, words in end.reason) == ("env_error", True), end.reason


async def test_a_fault_keeps_its_message_and_other_errors_have_a_location():
    assert (await play(Own(step=fails(EnvironmentFault("the phone is off"))))).reason == "the phone is off"
    assert (await play(Own(step=fails(EnvironmentFault())))).reason == "step() raised an EnvironmentFault without words"
    assert "(test_fault_boundary.py, line " in (await play(Own(step=fails(ValueError("wrong"))))).reason


def test_a_call_that_never_returns_does_not_outlast_its_episode():
    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(1e9)
            except asyncio.CancelledError:
                continue

    async def ends() -> None:
        for call in ("open", "reset", "step", "evaluate"):
            backend = Own(**{call: deaf})
            end = await play(backend)
            assert (end.kind, end.reason) == ("env_error", f"straggler: waited for the environment's {call}()")
        assert (await play(Own(close=deaf))).kind == "success"
        end = await play(Own(demonstrate=deaf), purpose="demonstration")
        assert (end.kind, "demonstrate()" in end.reason) == ("env_error", True)

    loop = Clockwork()
    loop.run_until_complete(ends())
    for left in asyncio.all_tasks(loop):
        left._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


async def test_a_call_that_ends_late_is_left_behind_until_it_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fault_boundary, "CANCEL_S", 0.0)
    released = asyncio.Event()

    async def late() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    contained = ContainedBackend(cast(Any, Own()))
    calling = asyncio.create_task(contained.call("step", late))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    (left,) = contained.left_behind
    released.set()
    await left
    await asyncio.sleep(0)
    assert not contained.left_behind


async def test_what_an_abandoned_open_returns_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fault_boundary, "CANCEL_S", 0.0)
    released, closed = asyncio.Event(), asyncio.Event()

    class Opened(Own):
        async def close(self) -> None:
            closed.set()

    async def late() -> Opened:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return Opened()

    contained = ContainedBackend(cast(Any, Own()))
    opening = asyncio.create_task(contained.call("open", late))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    released.set()
    await asyncio.wait_for(closed.wait(), 60)


def test_an_error_of_preparing_is_only_logged():
    class Expects(Own):
        def expect(self, task: Task) -> None:
            raise SystemExit(1)

    ContainedBackend(cast(Any, Expects())).expect(TASK)


@pytest.mark.parametrize("half", ["\ud83d", "\u4e16" * 700_000], ids=["half a character", "more than a record takes"])
async def test_an_undecodable_observation_ends_the_order_in_another_trajectory(half: str):
    log, backend = EncodingLog(), Own()
    await runner(backend, f"Action: type(content='{half}')", log).run(ORDER, TASK, lambda _: None)
    whole, refused = log.observations.values()
    assert [one.end for one in whole] == [None]
    assert refused[-1].end is not None
    assert (refused[-1].end.kind, refused[-1].order) == ("env_error", ORDER)
    assert "cannot be published" in refused[-1].end.reason
    assert backend.closed
