"""A whole run of any configuration whose environments are disturbed.

Usage: ``python -m tests.faults.disturbed_run deploy/config/demo.toml --minutes 2.5 [--rate 0.02] [--lethal TASK]
[--episode-s 40] [--evaluate 48] [--warmup 96]``. Each call of an environment fails with the share ``--rate``: it
raises, returns NaN or hangs (:mod:`tests.faults.disturbed_env`). The demonstrations of the warm-up are not disturbed.
The services are its own.

It exits with 1 unless the run is complete, no order is lost and no process has died but by ``--lethal``.
"""

import argparse
import functools
import json
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from console.launch import processes
from console.launch.run_start import write_report
from console.launch.services.daemon import free_port
from console.launch.session import Session, run_session
from console.runs import run_folder
from dart_streams import config as configuration
from dart_streams.config import Config
from dart_streams.errors import UserError
from tests.faults.disturbed_env import Settings
from tests.faults.supervised import prefixed

SHOWN = ("outcome", "lost", "open", "episodes", "train_steps", "requests", "trajectories", "env_fault_kinds", "deaths")


def configured(wanted: argparse.Namespace) -> Config:
    """Return the configuration, shortened as the command line says."""
    config, replace = configuration.load(wanted.config), msgspec.structs.replace
    return replace(
        config,
        bus=replace(config.bus, servers=f"127.0.0.1:{free_port()}"),
        store=replace(config.store, port=free_port()),
        run=replace(config.run, minutes=wanted.minutes),
        env=replace(config.env, episode_timeout_s=wanted.episode_s),
        evaluation=replace(config.evaluation, episodes=wanted.evaluate, temperatures=(1.0,)),
        warmup=replace(config.warmup, demonstrations=wanted.warmup, steps=min(config.warmup.steps, wanted.warmup)),
        services=replace(config.services, ready_s=max(config.services.ready_s, 180.0)),
    )


def main() -> int:
    """Run, print the figures, and return 1 if the run did not end well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--minutes", type=float, default=2.5)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--lethal", default="")
    parser.add_argument("--episode-s", type=float, default=40.0)
    parser.add_argument("--evaluate", type=int, default=48)
    parser.add_argument("--warmup", type=int, default=96)
    wanted = parser.parse_args()
    config = configured(wanted)
    made = run_folder.create(config, wanted.config.parent / config.tasks.file, run_folder.new_id(), resume=False)
    found = processes.find_programs()
    settings = json.dumps({"rate": wanted.rate, "lethal": wanted.lethal})
    before = {"env": (sys.executable, "-m", "tests.faults.disturbed_env", settings)}
    cast = prefixed(processes.processes_of(made.config(), made.config_file, found), before)
    msgspec.convert(json.loads(settings), Settings)
    policy = functools.partial(processes.find_policy, made, found=found) if processes.needs_model(config) else None
    try:
        with run_folder.lock_folder(made.path):
            run_session(made, lambda _: Session(made, cast, write_report, Console(width=160), find_policy=policy))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    report = json.loads((made.path / "report.json").read_text())
    sys.stdout.write(json.dumps({key: report[key] for key in SHOWN}, indent=1) + "\n")
    died = report["deaths"] and not wanted.lethal
    return int((report["outcome"], report["lost"]) != ("complete", 0) or bool(died))


if __name__ == "__main__":
    sys.exit(main())
