"""A model of the hub is fetched, trained on two nodes, exported, pushed and served again, by a user's commands.

Rollout has two ranks of vLLM. The trainer's two nodes are on this machine: the run starts one, and prints the command
of the other.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.launch.services.daemon import free_port
from tests.local_hub import local_hub
from tests.path.hub_user import LIMIT_S, MODEL, STREAMS, TAIL, HubUser, read_report, running
from tests.task_files import write_tasks
from tests.waiting import wait_until
from topics import weights, weights_serving

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL.is_dir(), reason="no environment .venv/model (make setup)"),
]
ORIGIN, TRAINED = "org/tiny-ui", "me/trained-ui"
STEPS, EPISODES = 2, 4
SETTINGS: dict[str, Any] = {
    "tasks": {"file": "tasks.toml"},
    "env": {"backend": "simulated", "slots": 4, "request_timeout_s": 120.0},
    "policy": {"max_images": 1, "max_texts": 0},
    "rollout": {"engine": "vllm", "max_in_flight": 4, "vllm": {"tensor_parallel": 2, "start_s": 900.0}},
    "curation": {"budget": {"base": 2, "dynamic": False}, "max_staleness": 4},
    "evaluation": {"episodes": EPISODES, "timeout_s": 300.0},
}
TRAINING: dict[str, Any] = {
    "run": {"minutes": 20.0, "train_steps": STEPS, "demonstrate": True, "drain_s": 10.0},
    "trainer": {"nodes": 2, "groups_per_step": 1, "learning_rate": 1e-3},
}
"""The model has no skill: a group without a success gets a demonstration, and is trained on that."""
BUILD = "import pathlib, sys; from dart_streams.policy import tiny; tiny.build(pathlib.Path(sys.argv[1]))"
OTHER_NODE = re.compile(r"on node 1 start trainer: (.+)")


@pytest.fixture
def user(services, tmp_path: Path) -> Iterator[HubUser]:
    """A user of a hub that has an untrained policy."""
    with local_hub() as hub:
        made = HubUser(hub, services, tmp_path)
        made.run(MODEL / "python", "-c", BUILD, tmp_path / "untrained")
        hub.add(ORIGIN, tmp_path / "untrained")
        write_tasks(tmp_path, "box", max_steps=1, train=(0, 12), heldout=(100, 104))
        yield made


def fetch_model(user: HubUser, model_id: str) -> str:
    """Fetch a model; return ``policy.path`` as the command prints it."""
    return tomllib.loads(user.policy("fetch", model_id))["policy"]["path"]


def train_on_two_nodes(user: HubUser, file: Path, run: str) -> None:
    """Run a deployment to its end, with the other node's command as the run prints it."""
    first, second = (user.folder / f"node-{number}.log" for number in range(2))

    def printed() -> str:
        found = OTHER_NODE.search(first.read_text())
        return found[1] if found and user.config_of(run).exists() else ""

    with running(user, first, STREAMS / "dart-streams", "run", file, "--id", run) as supervisor:
        wait_until(lambda: printed() or supervisor.poll() is not None, "the other node's command", LIMIT_S)
        assert printed(), first.read_text()[-TAIL:]
        with running(user, second, *shlex.split(printed())) as node:
            assert supervisor.wait(LIMIT_S) == 0, first.read_text()[-TAIL:] + second.read_text()[-TAIL:]
            assert node.wait(LIMIT_S) == 0, second.read_text()[-TAIL:]


def served(user: HubUser, run: str) -> list[tuple[int, str]]:
    """Return the versions that rollout workers of a run have announced, with their digests, in order."""
    events = user.events(run, weights_serving.TOPIC)
    return list(dict.fromkeys((event.version, event.sha256) for event in events))


def test_a_model_goes_from_the_hub_through_training_to_the_hub(user: HubUser):
    path = fetch_model(user, ORIGIN)
    assert path == f"{ORIGIN}@{user.hub.repositories[ORIGIN].refs['main']}"
    trainer = {**TRAINING["trainer"], "rendezvous": f"127.0.0.1:{free_port()}"}
    given = {**TRAINING, "trainer": trainer}
    file = user.write("training", SETTINGS, given, {"policy": {**SETTINGS["policy"], "path": path}})
    train_on_two_nodes(user, file, "first")

    report = read_report(user, "first")
    assert (report["outcome"], report["lost"]) == ("complete", 0)
    published = {event.version: event.sha256 for event in user.events("first", weights.TOPIC)}
    last = max(published)
    assert len(set(published.values())) == len(published) >= STEPS + 1, "each step changed the weights"
    assert dict(served(user, "first")).items() <= published.items()
    after = report["evaluation"]["after"]
    assert (after["version"], after["episodes"]) == (last, EPISODES), "the trained version has answered"
    logs = "".join(log.read_text() for log in (user.folder / "runs/first/logs").glob("*.log"))
    assert "ranks=2" in logs or '"ranks": 2' in logs or '"ranks":2' in logs

    exported = user.folder / "trained"
    user.policy("export", exported, "--run", "first", "--state", user.folder)
    user.policy("push", exported, TRAINED)
    assert TRAINED not in user.hub.repositories, "without --yes nothing is pushed"
    user.policy("push", exported, TRAINED, "--yes")

    again = fetch_model(user, TRAINED)
    file = user.write("serving", SETTINGS, {"run": {"minutes": 0.0}, "policy": {**SETTINGS["policy"], "path": again}})
    user.run(STREAMS / "dart-streams", "run", file, "--id", "again")
    assert read_report(user, "again")["evaluation"]["before"]["episodes"] == EPISODES
    assert served(user, "again") == [(0, published[last])], "the pushed weights are those of the last version"
