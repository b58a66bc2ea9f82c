import multiprocessing
from pathlib import Path

from benchmarks import private_services
from benchmarks.private_services import OWNER, private_folder


def holds_its_folder(homes: Path, number: int) -> bool:
    with private_folder(homes, f"-{number}") as folder:
        return folder.exists()


def test_processes_that_begin_together_do_not_sweep_each_others_folders(tmp_path: Path):
    """One in eighty failed: a sweep took a folder between its making and its owner's lock."""
    with multiprocessing.get_context("spawn").Pool(6) as pool:
        held = pool.starmap(holds_its_folder, [(tmp_path, number) for number in range(60)], chunksize=1)
    assert all(held)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_folder_of_a_dead_owner_that_cannot_be_removed_is_left(tmp_path: Path, monkeypatch):
    """Each later run of the tests failed, once one was killed while its small disk was mounted."""
    for name in ("disk", "plain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / OWNER).touch()

    def stop(folder: Path) -> None:
        if folder.name == "disk":
            raise OSError("Device or resource busy")

    monkeypatch.setattr(private_services, "stop_services", stop)
    private_services.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]
