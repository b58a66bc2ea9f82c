"""The library of every process. Only :func:`open` imports from above it, when it is called.

The order of imports is in tests/unit/test_imports.py.
"""

TYPE_CHECKING = False  # The library ``typing`` costs the start of each command 20 ms, in which Ctrl-C is a traceback.
if TYPE_CHECKING:
    from pathlib import Path

    from console.bundles.recorded_run import RecordedRun

__all__ = ["open"]


def open(source: "str | Path" = "latest", state: "str | Path" = ".dart") -> "RecordedRun":
    """Open a recorded run for analysis: a bundle's file, a run's folder, or a run's id in the folder ``state``.

    ::

        run = dart_streams.open("run.dart")
        run.episodes.to_pandas().groupby("task_id").reward.mean()

    Raises UserError if there is no such run.
    """
    from console.bundles.recorded_run import open_run

    return open_run(source, state)
