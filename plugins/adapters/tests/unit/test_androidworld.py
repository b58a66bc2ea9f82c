"""The adapter of AndroidWorld's server, against a stand-in that was made from its documented endpoints."""

import msgspec
import pytest

from dart_adapters import androidworld
from dart_streams.actions import Call, Click, Drag, Hotkey, KeyDown, KeyUp, Scroll, Type
from dart_streams.actions.offered import check_call
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.errors import ConfigError, ServiceUnavailable
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests import events
from tests.androidworld_stand_in import BOX, HEIGHT, WIDTH, Phone, box_of, goal_of, served
from tests.unit.workers.env.episodes import TRAINER, runner_of
from workers.env import conformance
from workers.env.environment import EnvironmentFault


def task(index: int, kind: str = "TapTheBox") -> Task:
    return Task(environment="androidworld", page=kind, seed=index, max_steps=5, split="train")


def made(*urls: str, **options):
    options = {"urls": " ".join(urls), **options}
    table = {"backend": "androidworld", "installed": {"options": options, "call_timeout_s": 60.0}}
    return androidworld.backend(parse({"env": table}))


class WithOracle(androidworld.AndroidWorldEnvironment):
    """An environment that knows where the stand-in's box is."""

    async def demonstrate(self, task):
        left, top = box_of(task.seed)
        yield Click(left + BOX // 2, top + BOX // 2)


async def test_it_keeps_the_contract(monkeypatch):
    monkeypatch.setattr(androidworld, "AndroidWorldEnvironment", WithOracle)
    async with served(Phone(), Phone()) as urls:
        backend = made(*urls)
        await backend.start()
        for index in (0, 3):
            await conformance.check(backend, task(index))
        await backend.stop()


async def test_what_a_policy_does_reaches_the_phone_as_its_actions():
    phone = Phone()
    async with served(phone) as urls:
        environment = await made(*urls).open(task(1))
        screen = await environment.reset(task(1))
        assert (screen.width, screen.height, screen.instruction) == (WIDTH, HEIGHT, goal_of("TapTheBox", 1))
        assert [one.name for one in screen.calls] == ["open_app", "set_text"]
        open_app, set_text = Call("open_app", {"app_name": "Clock"}), Call("set_text", {"text": "7:30"})
        for action in (open_app, set_text):
            check_call(action, screen.calls)
        played = [Drag(5, 50, 6, 10), Drag(50, 5, 10, 6), Click(1, 2, "right"), Click(3, 4, count=2)]
        played += [Type("word\n"), Type("\n"), Hotkey(("home",)), Hotkey(("back",)), Hotkey(("ctrl", "a"))]
        played += [Scroll(1, 1, "down"), KeyDown("ctrl"), Click(3, 4), KeyUp("ctrl")]
        played += [KeyDown("shift"), Type("a"), KeyUp("shift"), open_app]
        for number, action in enumerate(played):
            screen = await environment.step(action, str(number))
        assert (screen.returned, (await environment.step(set_text, "last")).returned) == ("done", "done")
        assert phone.touched == [
            {"action_type": "swipe", "direction": "up"},
            {"action_type": "swipe", "direction": "right"},
            {"action_type": "long_press", "x": 1, "y": 2},
            {"action_type": "double_tap", "x": 3, "y": 4},
            {"action_type": "input_text", "text": "word"},
            {"action_type": "keyboard_enter"},
            {"action_type": "navigate_home"},
            {"action_type": "navigate_back"},
            {"action_type": "scroll", "direction": "down"},
            {"action_type": "input_text", "text": "A"},
            {"action_type": "open_app", "app_name": "Clock"},
            {"action_type": "input_text", "text": "7:30", "clear_text": True},
        ]
        await environment.close()
        await environment.close()
    assert phone.torn_down == 1


async def test_a_reset_tears_down_goes_home_and_initializes():
    """What an episode leaves on the phone is the server's matter; a modifier that it held is ours."""
    phone = Phone()
    async with served(phone) as urls:
        environment = await made(*urls).open(task(1))
        await environment.reset(task(1))
        await environment.step(KeyDown("ctrl"), "hold")
        phone.asked.clear()
        await environment.reset(task(2))
        of_first, of_second = ("task_type=TapTheBox&task_idx=1", "task_type=TapTheBox&task_idx=2")
        assert phone.asked == [
            f"POST /task/tear_down?{of_first}",
            "POST /reset?go_home=true",
            f"POST /task/initialize?{of_second}",
            f"GET /task/goal?{of_second}",
            "GET /screenshot?wait_to_stabilize=true",
        ]
        await environment.step(Click(1, 2), "free")
        assert phone.touched == [{"action_type": "click", "x": 1, "y": 2}]
        await environment.close()


@pytest.mark.parametrize(
    ("answer", "kind", "sent"),
    [
        ("finished(content='4')", "success", {"action_type": "answer", "text": "4"}),
        ("finished(content='5')", "failure", {"action_type": "answer", "text": "5"}),
        ("call_user()", "failure", {"action_type": "status", "goal_status": "infeasible"}),
    ],
)
async def test_a_question_is_answered_by_the_text_of_finished(answer, kind, sent):
    phone = Phone()
    async with served(phone) as urls:
        asked, log = task(4, "SayTheNumber"), ObservationLog()
        config = parse({"env": {"backend": "simulated", "episode_timeout_s": 300.0}})
        runner = runner_of(config, made(*urls), log, PolicyFunction(lambda _: f"Action: {answer}", TRAINER))
        await runner.run(events.rollout_order(task_id=asked.task_id, purpose="train"), asked, lambda _: None)
    (shown,) = log.observations.values()
    assert shown[-1].end.kind == kind
    assert phone.ends == [sent]


async def test_an_episode_waits_for_a_phone_and_is_refused_in_time():
    async with served(Phone()) as urls:
        backend = made(*urls)
        first, second = await backend.open(task(0)), await backend.open(task(0))
        await first.reset(task(0))
        patient, backend.settings = backend.settings, msgspec.structs.replace(backend.settings, reset_timeout_s=0.2)
        with pytest.raises(EnvironmentFault, match=r"a free server: no start within 0\.2 s"):
            await second.reset(task(0))
        backend.settings = patient
        await second.close()
        await first.close()
        await second.reset(task(0))
        await second.close()


async def test_a_failing_server_is_a_fault_and_its_phone_is_given_back():
    phone = Phone()
    async with served(phone) as urls:
        backend = made(*urls)
        environment = await backend.open(task(0))
        with pytest.raises(EnvironmentFault, match=r"/task/initialize\S*: status 500: KeyError: 'Other'"):
            await environment.reset(task(0, "Other"))
        await environment.close()
        environment = await backend.open(task(0))
        await environment.reset(task(0))
        phone.failing = "the emulator is gone"
        with pytest.raises(EnvironmentFault, match=r"/screenshot\S*: status 500: the emulator is gone"):
            await environment.step(Click(1, 1), "click")
        await environment.close()
        assert backend.free.qsize() == 1


async def test_options_and_servers_that_are_not_there_are_named():
    with pytest.raises(ConfigError, match=r"options of androidworld: .*`urls`"):
        androidworld.backend(parse({"env": {"backend": "androidworld"}}))
    with pytest.raises(ConfigError, match="unknown field `url`"):
        made("http://127.0.0.1:1", url="x")
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1:1/health: .*start AndroidWorld's server"):
        await made("http://127.0.0.1:1").start()
