"""Writes the workload of a bundle: ``dart-streams bench workload BUNDLE -o FOLDER``."""

from pathlib import Path

import tomli_w

from benchmarks.observed import READ, pages, tables, times
from dart_streams.console.bundles.bundle_inputs import config_of
from dart_streams.console.runs.bundle import Bundle
from dart_streams.console.runs.run_log import read_log
from dart_streams.console.runs.run_state import RunState


def write(path: Path, folder: Path, time_scale: float) -> None:
    """Write ``workload.toml`` and ``tasks.toml``; raise UserError if the bundle has no training episodes."""
    bundle = Bundle(path)
    config = config_of(bundle)
    state = RunState(keep_steps=True).fold(read_log(bundle, READ))
    seen = times(state)
    found = tables(
        state,
        seen,
        config.env.selected.call_timeout_s,
        config.workload.time_scale if config.workload else 1.0,
        time_scale,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "workload.toml").write_text(tomli_w.dumps(found))
    (folder / "tasks.toml").write_text(tomli_w.dumps(pages(seen)))
