"""The application for Faust's own commands: ``DART_CONFIG=FILE faust -A workers.curator.app worker``."""

import os
from pathlib import Path

import msgspec

from dart_streams.config import load
from dart_streams.errors import ConfigError
from dart_streams.telemetry import setup
from workers.curator.main import DataManager

WORKER_ID = "curator-0"


def __getattr__(name: str) -> DataManager:
    """Return the attribute ``app``, made from the file that DART_CONFIG names."""
    if name != "app":
        raise AttributeError(name)
    if not (file := os.environ.get("DART_CONFIG")):
        raise ConfigError("no configuration: set DART_CONFIG to a deployment's file, e.g. deploy/config/demo.toml")
    config = load(Path(file))
    tasks = msgspec.structs.replace(config.tasks, file=str((Path(file).parent / config.tasks.file).absolute()))
    config = msgspec.structs.replace(config, tasks=tasks)
    setup.start(config, WORKER_ID)
    return DataManager(config, WORKER_ID)
