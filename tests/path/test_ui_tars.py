"""The page on UI-TARS-1.5-7B trains and serves, with a small random model by the same id on a hub of this machine.

Commands and configurations are the page's. Substituted are endpoints, numbers of processes, times, tasks and their
environment, which `SMALLER` lists, and what vLLM's server needs on a CPU: its command line looks for a package of
another name there.
"""

import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.launch.services.daemon import free_port
from tests.local_hub import local_hub
from tests.path.hub_user import LIMIT_S, MODEL, STREAMS, TAIL, HubUser, read_report, running
from tests.path.ui_tars_page import MODEL_ID, ROOT, SERVED, TRAINED, file_of, write_small_model
from tests.task_files import write_tasks
from tests.waiting import wait_until
from topics import trajectories, weights, weights_serving
from workers.rollout import vllm_settings

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL.is_dir(), reason="no environment .venv/model (make setup)"),
]
EPISODES, STEPS = 2, 1
SMALLER: dict[str, dict[str, Any]] = {
    "tasks": {"file": "tasks.toml"},
    "env": {"backend": "desktop", "workers": 1, "slots": 2, "request_timeout_s": 300.0},
    "evaluation": {"episodes": EPISODES, "timeout_s": 900.0},
}
TRAINING: dict[str, dict[str, Any]] = {
    "run": {"minutes": 20, "drain_s": 10.0},
    "rollout": {"workers": 1, "max_in_flight": 2},
    "curation": {"budget": {"base": 2, "dynamic": False}},
    "policy": {"max_pixels": 300_000},
    "trainer": {"processes": 2, "groups_per_step": 1, "max_train_steps": STEPS, "checkpoint_every": 1},
}
"""On two cores a step on whole screenshots of 10,800 patches took 514 s."""
ON_A_CPU = ("--enforce-eager", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(2 << 30), "--skip-mm-profiling")
KEY = "sk-of-this-test"


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small random model."""
    folder = tmp_path_factory.mktemp("ui-tars") / "model"
    write_small_model(folder)
    return folder


@pytest.fixture
def user(services, tmp_path: Path, untrained: Path) -> Iterator[HubUser]:
    """A user of a hub that has the model by the id of the page."""
    with local_hub() as hub:
        hub.add(MODEL_ID, untrained)
        write_tasks(tmp_path, "answer", environment="desktop", max_steps=1, train=(0, 4), heldout=(1000, 1002))
        yield HubUser(hub, services, tmp_path)


def smaller(user: HubUser, command: str, *tables: dict[str, Any]) -> list[str]:
    """Return a command of the page with a copy of its configuration, in which these tables win."""
    file = file_of(command)
    copy = user.write(Path(file).stem, tomllib.loads((ROOT / file).read_text()), *tables, user.endpoints())
    words = shlex.split(command.replace(file, str(copy)))
    words = [word for word in words if not word.startswith("VLLM_API_KEY=")]
    return [str(STREAMS / words[0]), *words[1:]]


def test_the_run_of_the_page_trains_and_serves_its_versions(user: HubUser):
    [command] = TRAINED
    user.run(*smaller(user, command, SMALLER, TRAINING))
    run = user.only_run()
    report = read_report(user, run)
    assert (report["outcome"], report["lost"]) == ("complete", 0)
    assert report["evaluation"]["after"]["episodes"] == EPISODES
    published = [event.version for event in user.events(run, weights.TOPIC)]
    served = {event.version for event in user.events(run, weights_serving.TOPIC)}
    assert max(published) == max(served) == STEPS


def test_the_server_of_the_page_is_evaluated_and_demonstrates(user: HubUser):
    serve, run = SERVED
    port = free_port()
    tables = {"openai": {**tomllib.loads((ROOT / file_of(run)).read_text())["rollout"]["openai"]}}
    tables["openai"]["base_url"] = f"http://127.0.0.1:{port}/v1"
    on_a_cpu = vllm_settings.engine_environment({})
    user.variables = {**on_a_cpu, **user.variables, "VLLM_API_KEY": KEY}
    user.policy("fetch", MODEL_ID)
    _, program, subcommand, model, *words = shlex.split(serve)
    assert (program, subcommand, model) == (".venv/model/bin/vllm", "serve", MODEL_ID)
    log = user.folder / "server.log"
    server_of_cpu = (MODEL / "python", "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", model)
    with running(user, log, *server_of_cpu, *words, "--host", "127.0.0.1", "--port", port, *ON_A_CPU) as server:
        wait_until(lambda: "startup complete" in log.read_text() or server.poll() is not None, "the server", LIMIT_S)
        assert server.poll() is None, log.read_text()[-TAIL:]
        user.run(*smaller(user, run, SMALLER, {"rollout": {"engine": "openai", "max_in_flight": 2, **tables}}))
    made = user.only_run()
    report = read_report(user, made)
    assert (report["outcome"], report["lost"]) == ("complete", 0)
    assert report["evaluation"]["before"]["episodes"] == EPISODES
    assert len(user.events(made, trajectories.TOPIC)) > EPISODES, "training tasks were demonstrated by the server"
