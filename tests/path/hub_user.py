"""A user of a hub: commands with the hub's variables, and configurations of runs on real services."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from console.runs.run_log import read_events
from dart_streams import config as configuration
from tests.local_hub import LocalHub
from tests.sources import ROOT
from topics.topic import Topic

MODEL, STREAMS = ROOT / ".venv/model/bin", ROOT / ".venv/streams/bin"
LIMIT_S = 900.0
"""Of a command, on a machine that does other things at the same time."""
TAIL = 4000


class HubUser:
    """Runs commands with a hub's variables; ``folder`` has the hub's cache, configurations and runs."""

    def __init__(self, hub: LocalHub, services: Any, folder: Path) -> None:
        self.hub, self.services, self.folder = hub, services, folder
        wide = {"COLUMNS": "2000", "HF_TOKEN": hub.token}
        self.variables = {**os.environ, **hub.environment(folder / "home"), **wide}

    def run(self, *words: object, **variables: str) -> str:
        """Run a command, which must succeed; return its standard output."""
        done = subprocess.run(
            [str(word) for word in words],
            cwd=ROOT,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-TAIL:]}\n{done.stderr[-TAIL:]}"
        return done.stdout

    def policy(self, *words: object) -> str:
        """Run a command of ``dart-streams policy``."""
        return self.run(MODEL / "dart-streams", "policy", *words)

    def endpoints(self) -> dict[str, dict[str, Any]]:
        """Return the keys of the real Kafka and Cassandra, and of the folder."""
        running = self.services.running
        place = {"hosts": list(running.store.hosts), "port": running.store.port, "keyspace": self.services.keyspace}
        return {"bus": {"servers": running.bus.servers}, "store": place, "run": {"state_dir": str(self.folder)}}

    def write(self, name: str, *tables: dict[str, Any]) -> Path:
        """Write a configuration with the endpoints and these keys and tables, of which later ones win."""
        whole: dict[str, Any] = {}
        for given in (self.endpoints(), *tables):
            for table, keys in given.items():
                whole[table] = {**whole.get(table, {}), **keys} if isinstance(keys, dict) else keys
        file = self.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(whole))
        return file

    def events(self, run: str, topic: Topic) -> list[Any]:
        """Return a topic's events of a run."""
        return list(read_events(configuration.load(self.config_of(run), recorded=True).bus, [topic]))

    def only_run(self) -> str:
        """Return the id of the only run."""
        [folder] = [path for path in (self.folder / "runs").iterdir() if not path.is_symlink()]
        return folder.name

    def config_of(self, run: str) -> Path:
        """Return the file of a run's resolved configuration."""
        return self.folder / "runs" / run / "config.toml"


def read_report(user: HubUser, run: str) -> dict[str, Any]:
    """Return the report of a run."""
    return dict(json.loads((user.folder / "runs" / run / "report.json").read_text()))


@contextmanager
def running(user: HubUser, log: Path, *words: object) -> "Iterator[subprocess.Popen[bytes]]":
    """A command that writes to ``log``, and is ended with the block."""
    with log.open("wb") as output:
        command = [str(word) for word in words]
        process = subprocess.Popen(command, cwd=ROOT, env=user.variables, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT_S)
