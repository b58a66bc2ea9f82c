"""The files of a run's folder in a bundle: the journal is read back, and no other file than a run's is written."""

from pathlib import Path

import pytest

from console.bundles import capture, restore
from console.bundles.bundle_inputs import captured_journal
from console.runs.bundle import Bundle, BundleError, Manifest, Writer
from console.runs.run_folder import PhaseLog, RunFolder, write_json
from dart_streams.config import Config
from dart_streams.config.connections import TopicSettings

MANIFEST = Manifest(run="dart.one", prefix="dart.one.", captured_ms=0, schemas={})
GOLDEN = Path(__file__).parents[2] / "golden/bundle.v1.dart"


def bundle_with(path: Path, **files: bytes) -> Bundle:
    with Writer(path, MANIFEST) as writer:
        for name, text in files.items():
            writer.section(name, "lines", [text])
    return Bundle(path)


def test_the_files_of_a_folder_come_back_as_they_were(tmp_path: Path):
    """Those of a worker whose state folder is apart, too; what it links there is not followed."""
    folder, apart = RunFolder(tmp_path / "runs/one"), tmp_path / "env/runs/one/metrics"
    for made in (folder.path / "metrics", apart):
        made.mkdir(parents=True)
    journal = PhaseLog(outcome="complete").with_death("env-0", "exit code 1", "", 1)
    folder.write_journal(journal)
    write_json(folder.path / "report.json", {"train_steps": 3})
    (folder.path / "metrics/rollout-0.jsonl").write_bytes(b"{}\n{}\n")
    (apart / "env-0.jsonl").write_bytes(b"{}\n{}\n")
    (folder.path / "config.toml").write_text("secret")
    (apart / "linked.jsonl").symlink_to(folder.path / "config.toml")
    with Writer(tmp_path / "run.dart", MANIFEST) as writer:
        capture.write_files(writer, folder.path)
    bundle = Bundle(tmp_path / "run.dart")
    assert captured_journal(bundle) == journal
    again = RunFolder(tmp_path / "again")
    restore.write_files(again, bundle)
    written = {str(path.relative_to(again.path)) for path in again.path.rglob("*") if path.is_file()}
    assert written == {"journal.json", "report.json", "metrics/env-0.jsonl", "metrics/rollout-0.jsonl"}
    given = {name: folder.path / name for name in written} | {"metrics/env-0.jsonl": apart / "env-0.jsonl"}
    assert all((again.path / name).read_bytes() == given[name].read_bytes() for name in written)


def test_a_file_that_no_run_has_is_not_written(tmp_path: Path):
    names = ("file:../out", "file:config.toml", "file:metrics/../x.jsonl", "file:/tmp/x", "file:metrics/a/b.jsonl")
    bundle = bundle_with(tmp_path / "run.dart", **dict.fromkeys(names, b"x"))
    restore.write_files(RunFolder(tmp_path / "runs/one"), bundle)
    assert not (tmp_path / "runs").exists()


def test_a_restored_run_has_the_partitions_and_copies_of_the_deployment(tmp_path: Path):
    with Writer(tmp_path / "run.dart", MANIFEST) as writer:
        writer.text("config.toml", "[bus.topics]\npartitions = 5000\nreplicas = 99\nretention_hours = {curated = 9}\n")
    config = restore.restored_config(Bundle(tmp_path / "run.dart"), Config(), tmp_path)
    assert config.bus.topics == TopicSettings(retention_hours={"curated": 9})


def test_the_journal_of_a_capture_under_way_is_recorded(tmp_path: Path):
    bundle = bundle_with(tmp_path / "run.dart", **{"file:journal.json": b'{"outcome":"unfinished"}'})
    assert captured_journal(bundle).outcome == "recorded"
    assert captured_journal(Bundle(GOLDEN)) is None
    damaged = bundle_with(tmp_path / "bad.dart", **{"file:journal.json": b"{"})
    with pytest.raises(BundleError, match="capture the run again"):
        captured_journal(damaged)
