"""The notebook of a recorded run, executed, and its tables as DataFrames."""

from pathlib import Path

import nbclient
import nbformat
import pytest

import dart_streams
from tests.integration.recorded_run import record
from tests.sources import ROOT

NOTEBOOK = ROOT / "examples/analyze_run.ipynb"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run.dart")


def test_the_notebook_runs_from_its_first_cell_to_its_last(bundle: Path, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("DART_RUN", str(bundle))
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs, which would go stale"
    place, bounds = {"metadata": {"path": str(tmp_path)}}, {"timeout": 300, "startup_timeout": 300}
    nbclient.NotebookClient(notebook, resources=place, **bounds).execute()
    texts = [
        output.data["text/plain"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output
    ]
    run = dart_streams.open(bundle)
    count = sum(row["purpose"] == "train" for row in run.episodes)
    assert f"train {count}" in " ".join(texts[0].split())
    screen = max(run.actions, key=lambda row: sum(row["entropies"]) / len(row["entropies"]) if row["entropies"] else 0)
    assert str(len(run.screenshot(screen["screen"]))) in texts


def test_both_libraries_have_the_rows_of_each_table(bundle: Path):
    run = dart_streams.open(bundle)
    for name in ("episodes", "actions", "groups", "train_steps", "versions", "orders", "budgets"):
        table = getattr(run, name)
        rows = list(table)
        pandas, polars = table.to_pandas(), table.to_polars()
        assert rows and len(pandas) == len(polars) == len(rows), name
        assert list(pandas.columns) == polars.columns
        assert set(rows[0]) <= set(polars.columns)
