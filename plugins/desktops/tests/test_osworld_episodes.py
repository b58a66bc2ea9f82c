"""The environment worker plays our tasks in OSWorld's format on served desktops."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from dart_desktops.osworld import mirror
from dart_desktops.osworld.backend import OsworldBackend
from dart_desktops.osworld.environment import OsworldEnvironment
from dart_desktops.osworld.oracles import ORACLES, Solution
from dart_streams.actions import Action, CallUser, Finished, Hotkey, Type, Wait
from dart_streams.actions import format as text_of
from dart_streams.config import Config, Env, Osworld, OsworldMachine
from dart_streams.config.deployment import Tasks
from dart_streams.config.tasks import load
from dart_streams.errors import ConfigError
from examples.in_memory_run import InMemoryRun
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.served_desktops import Served, served
from tests.integration.env_harness import Harness, number_of, order, process, serving
from tests.processes import command_of
from tests.waiting import until
from tests.worker_runs import exit_code_of
from topics.action_requests import ActionRequest
from topics.trajectories import Trajectory
from workers.env.environment import EnvironmentFault

pytestmark = [pytest.mark.asyncio(loop_scope="module"), osworld_needs.EVALUATORS]
START, GOLD = (
    f"https://hub.example/datasets/{mirror.DATASET}/resolve/main/os/{name}.txt" for name in ("start", "gold")
)
LEASE_S = 900.0
NOTE, JUDGED = "/home/user/note.txt", "/home/user/judged.txt"


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def said(*command: str, rules: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluator of the output of a command on the machine."""
    result = {"type": "vm_command_line", "command": list(command)}
    return {"func": "check_include_exclude", "result": result, "expected": {"type": "rule", "rules": rules}}


WORDS = {"include": ["pear"], "exclude": []}
EDITED = {
    "func": "compare_text_file",
    "postconfig": [step("sleep", seconds=2), step("execute", command=["cp", NOTE, JUDGED])],
    "result": {"type": "vm_file", "path": JUDGED, "dest": "judged.txt"},
    "expected": {"type": "cloud_file", "path": GOLD, "dest": "gold.txt"},
    "options": {"ignore_blanks": True},
}
EDITOR = [
    step("download", files=[{"url": START, "path": NOTE}]),
    step("launch", command=["mousepad", "--disable-server", NOTE]),
    step("sleep", seconds=2),
]
TASKS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "note": (EDITOR, EDITED),
    "impossible": ([], {"func": "infeasible"}),
    "raises": ([], said("echo", "pear", rules={"include": 3})),
    "slow": ([], said("sh", "-c", "touch /tmp/asked; sleep 600; echo pear", rules=WORDS)),
    "no-file": ([step("open", path="/home/user/none.txt")], said("echo", rules=WORDS)),
    "no-mirror": ([step("download", files=[{"url": "https://a.example/x", "path": "/x"}])], EDITED),
    "solved": ([], said("echo", "pear", rules=WORDS)),
    "runs-code": ([], {**EDITED, "func": "check_python_file_by_test_suite"}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Two desktops; leases of these tests are not renewed."""
    async with served(tmp_path_factory.mktemp("served"), (800, 600), slots=2, lease_s=LEASE_S) as running:
        yield running


@pytest.fixture(scope="module")
def tasks_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task set with a checkout and a mirror beside it."""
    folder = tmp_path_factory.mktemp("osworld")
    examples = folder / "checkout/evaluation_examples"
    (examples / "examples/os").mkdir(parents=True)
    for name, (config, evaluator) in TASKS.items():
        content = {"id": name, "instruction": f"Do {name}.", "config": config, "evaluator": evaluator}
        (examples / f"examples/os/{name}.json").write_text(json.dumps(content))
    (examples / "test_all.json").write_text(json.dumps({"os": list(TASKS)}))
    (folder / "mirror/os").mkdir(parents=True)
    (folder / "mirror/os/start.txt").write_text("fig\n")
    (folder / "mirror/os/gold.txt").write_text("pear\n")
    file = folder / "tasks.toml"
    file.write_text('[osworld]\nfolder = "checkout"\nheldout_share = 0\n')
    return file


def configured(desktops: Served, tasks_file: Path, **settings: Any) -> Config:
    """Return the configuration of a worker that leases from the server."""
    settings = {
        "lease_url": desktops.leases,
        "lease_token": f"file:{desktops.token_file}",
        "mirror_folder": str(tasks_file.parent / "mirror"),
        "check_start": False,
        "call_timeout_s": 60.0,
        "reset_timeout_s": 240.0,
        **settings,
    }
    env = Env(backend="osworld", osworld=Osworld(**settings), episode_timeout_s=600.0)
    return Config(env=env, tasks=Tasks(file=str(tasks_file)))


@pytest_asyncio.fixture(loop_scope="module")
async def backend(desktops: Served, tasks_file: Path) -> AsyncIterator[OsworldBackend]:
    """A started backend, whose evaluators leave nothing behind."""
    started = OsworldBackend(configured(desktops, tasks_file))
    await started.start()
    assert started.shared is not None
    yield started
    left = list(started.shared.evaluators.cache.iterdir())
    await started.stop()
    assert not left
    assert not started.shared.evaluators.running
    assert not started.shared.evaluators.cache.exists()


async def play(backend: OsworldBackend, tasks_file: Path, name: str, *actions: Action) -> Trajectory:
    """Return the trajectory of the worker's own episode, whose policy answers with these actions in turn."""
    answers = iter(actions)
    config = Config(
        env=Env(backend="osworld", osworld=backend.settings, episode_timeout_s=600.0), tasks=Tasks(file=str(tasks_file))
    )
    run = InMemoryRun(config, load(tasks_file), backend, lambda _request: text_of(next(answers)))
    return await run.play(order(0, f"osworld/os/{name}#0", max_steps=15))


def end_of(trajectory: Trajectory) -> tuple[str, float | None]:
    return trajectory.outcome, trajectory.reward


SOLVED = (Hotkey(("ctrl", "a")), Type("pear\n"), Hotkey(("ctrl", "s")), Finished(""))


@pytest.mark.parametrize(
    ("name", "actions", "end"),
    [
        ("note", (Finished(""),), ("failure", 0.0)),
        ("note", SOLVED, ("success", 1.0)),
        ("note", (*SOLVED[:-1], CallUser()), ("failure", 0.0)),
        ("impossible", (CallUser(),), ("success", 1.0)),
        ("impossible", (Wait(), Finished("")), ("failure", 0.0)),
        ("raises", (Finished(""),), ("failure", 0.0)),
    ],
)
async def test_an_episode_is_scored_as_osworld_scores_it(backend, tasks_file, name, actions, end):
    assert end_of(await play(backend, tasks_file, name, *actions)) == end


@pytest.mark.parametrize("name", ["no-file", "no-mirror", "runs-code"])
async def test_a_fault_of_the_set_up_or_the_evaluator_has_no_reward(backend, tasks_file, name):
    assert end_of(await play(backend, tasks_file, name, Finished(""))) == ("env_error", None)


async def opened(backend: OsworldBackend, tasks_file: Path, name: str) -> OsworldEnvironment:
    """Return an environment that was reset to a task."""
    task = load(tasks_file).get(f"osworld/os/{name}#0")
    environment = await backend.open(task)
    await environment.reset(task)
    return environment


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no-file", r"step 1 of 1 \(open\)"),
        ("no-mirror", "os/no-mirror cannot be played here: 1 of its 2 files are not in the mirror"),
        ("runs-code", "would run the policy's program"),
    ],
)
async def test_a_set_up_that_fails_says_why_and_keeps_no_machine(desktops, backend, tasks_file, name, why):
    with pytest.raises(EnvironmentFault, match=why):
        await opened(backend, tasks_file, name)
    assert "leased" not in [slot["state"] for slot in (await desktops.ask("GET"))[1]]


async def test_a_cancelled_episode_does_not_end_the_start_of_the_shared_sidecar(desktops, tasks_file):
    made = OsworldBackend(configured(desktops, tasks_file))
    await made.start()
    assert made.shared is not None
    first = asyncio.create_task(opened(made, tasks_file, "note"))
    second = asyncio.create_task(opened(made, tasks_file, "note"))

    async def starting() -> bool:
        return made.shared.evaluators.process is not None

    await until(starting)
    process = made.shared.evaluators.process
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    environment = await second
    assert made.shared.evaluators.process is process
    assert await environment.evaluate() == 0
    await environment.close()
    await made.stop()


async def test_an_infeasible_task_is_demonstrated_by_saying_so(backend, tasks_file):
    task = load(tasks_file).get("osworld/os/impossible#0")
    environment = await opened(backend, tasks_file, "impossible")
    assert [action async for action in environment.demonstrate(task)] == [CallUser()]
    await environment.close()
    environment = await opened(backend, tasks_file, "raises")
    with pytest.raises(EnvironmentFault, match="no oracle"):
        assert [action async for action in environment.demonstrate(task)]
    await environment.close()


async def test_a_demonstration_ends_by_saying_that_the_task_is_finished(backend, tasks_file, monkeypatch):
    saved = Hotkey(("ctrl", "s"))
    monkeypatch.setitem(ORACLES, "note", Solution((saved,)))
    environment = await opened(backend, tasks_file, "note")
    task = load(tasks_file).get("osworld/os/note#0")
    assert [action async for action in environment.demonstrate(task)] == [saved, Finished()]
    await environment.close()


async def test_a_task_solved_or_unreadable_at_its_start_is_refused(desktops, tasks_file):
    made = OsworldBackend(configured(desktops, tasks_file, check_start=True))
    await made.start()
    with pytest.raises(EnvironmentFault, match="os/raises: evaluation: check_include_exclude: TypeError"):
        await opened(made, tasks_file, "raises")
    with pytest.raises(EnvironmentFault, match="os/solved is not played: its untouched start state is worth 1"):
        await opened(made, tasks_file, "solved")
    made.provider = None  # type: ignore[assignment]
    with pytest.raises(EnvironmentFault, match="os/solved is not played"):
        await opened(made, tasks_file, "solved")
    await made.stop()


async def test_a_task_is_played_on_a_machine_that_was_not_evaluated(desktops, tasks_file):
    made = OsworldBackend(configured(desktops, tasks_file, check_start=True))
    await made.start()
    environment = await opened(made, tasks_file, "note")
    assert environment._machine is not None
    found = await environment._machine.execute(f"ls {JUDGED}; pgrep -xc mousepad", shell=True)
    assert found["output"].split()[-1] == "1", "one editor"
    assert JUDGED not in found["output"].splitlines(), "what comes before the evaluation was not done here"
    assert await environment.evaluate() == 0
    await environment.close()
    await made.stop()


@pytest.mark.parametrize("leased", [True, False])
async def test_only_desktops_of_a_lease_server_are_given_what_osworlds_image_has(desktops, tasks_file, leased):
    async with desktops.machine(ttl_s=LEASE_S) as machine:
        token = tasks_file.parent / "machine.token"
        token.write_text(machine.endpoint.token)
        given = (OsworldMachine(url=machine.endpoint.url, token=f"file:{token}"),)
        listed = {"machines": given, "fresh": "given", "lease_url": ""}
        made = OsworldBackend(configured(desktops, tasks_file, **({} if leased else listed)))
        await made.start()
        environment = await opened(made, tasks_file, "note")
        assert environment._machine is not None
        found = await environment._machine.execute("pgrep -xc mousepad; ls ~/.config/vlc", shell=True)
        assert found["output"].split() == ["1", *(["vlc-qt-interface.conf", "vlcrc"] if leased else [])]
        assert await environment.evaluate() == 0
        await environment.close()
        await made.stop()


async def test_without_a_mirror_the_worker_does_not_start(desktops, tasks_file):
    for folder, why in (("", "name the folder"), ("/nowhere", "no folder /nowhere")):
        with pytest.raises(ConfigError, match=f"env.osworld.mirror_folder: {why}"):
            await OsworldBackend(configured(desktops, tasks_file, mirror_folder=folder)).start()


async def test_tasks_without_files_need_no_mirror(desktops, tasks_file):
    alone = tasks_file.with_name("alone.toml")
    alone.write_text('[osworld]\nfolder = "checkout"\ntasks = ["os/impossible"]\n')
    backend = OsworldBackend(configured(desktops, alone, mirror_folder=""))
    await backend.start()
    assert end_of(await play(backend, tasks_file, "impossible", CallUser())) == ("success", 1.0)
    await backend.stop()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_the_worker_plays_them_for_orders_and_leaves_no_evaluator_behind(
    services, desktops, tasks_file, tmp_path, ending
):
    wanted = configured(desktops, tasks_file).env
    config = services.config(
        env=msgspec.to_builtins(wanted) | {"slots": 2, "request_timeout_s": 60.0},
        tasks={"file": str(tasks_file)},
        run={"drain_s": 20, "state_dir": str(tmp_path)},
    )
    episodes = [("note", SOLVED), ("impossible", (CallUser(),)), ("no-file", ()), ("note", (CallUser(),))]

    def answer(request: ActionRequest) -> str:
        return text_of(episodes[number_of(request)][1][request.step])

    async with serving(Harness(config, answer)) as harness:
        with process(config, tmp_path) as running:
            await harness.order(
                *(order(n, f"osworld/os/{name}#0", max_steps=15) for n, (name, _) in enumerate(episodes))
            )
            async with asyncio.timeout(480), harness.changed:
                await harness.changed.wait_for(lambda: len(harness.ended) == len(episodes))
            tree = psutil.Process(running.pid).children(recursive=True)
            assert any(" -I -B -c " in command_of(process) for process in tree), "there is a sidecar"
            running.send_signal(ending)
            assert await exit_code_of(running) in {0, -ending}
        assert not psutil.wait_procs(tree, timeout=60)[1]
    ends = [harness.ended[f"o{number}"][0].end for number in range(len(episodes))]
    assert [(end.kind, end.reward, end.reason) for end in ends[:2] + ends[3:]] == [
        ("success", 1.0, ""),
        ("success", 1.0, ""),
        ("failure", 0.0, "call_user"),
    ]
    assert (ends[2].kind, ends[2].reward) == ("env_error", None)
    assert "step 1 of 1 (open)" in ends[2].reason
