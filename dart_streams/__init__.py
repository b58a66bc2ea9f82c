"""The library of every process. The order of imports is in tests/unit/test_imports.py."""

TYPE_CHECKING = False  # The library ``typing`` costs the start of each command 20 ms, in which Ctrl-C is a traceback.
if TYPE_CHECKING:
    from pathlib import Path

    from dart_data.recorded_run import RecordedRun

__all__ = ["open"]


def open(source: "str | Path" = "latest", state: "str | Path" = ".dart") -> "RecordedRun":
    """Open a recorded run for analysis: a bundle's file, a run's folder, or a run's id in the folder ``state``.

    ::

        run = dart_streams.open("run.dart")
        run.episodes.to_pandas().groupby("task_id").reward.mean()

    Raises UserError if there is no such run, or dart-data is not installed.
    """
    from dart_streams.config.entry_points import load_part

    return load_part("run.open")(source, state)
