import hashlib
from pathlib import Path, PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.osworld import mirror
from plugins.desktops.tests.unit.osworld.parsed_tasks import INFEASIBLE, download, parse_task

OURS = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main/os/t1/a%20b.txt?download=true"


def test_dataset_files_have_a_clones_paths_and_others_separate_folders():
    assert mirror.mirror_path(OURS) == "os/t1/a b.txt"
    assert (
        mirror.mirror_path("https://hub.example/datasets/some/other/resolve/main/x.txt") == "datasets/some/other/x.txt"
    )
    one, other = (mirror.mirror_path(f"https://a.example/{place}/x.pdf") for place in ("1", "2"))
    assert one != other
    assert PurePosixPath(one).name == "x.pdf"


@given(st.text(max_size=40))
def test_no_url_leads_out_of_the_mirror(rest: str):
    for prefix in ("https://a.example/", f"https://a.example/datasets/{mirror.DATASET}/resolve/main/"):
        try:
            place = PurePosixPath(mirror.mirror_path(prefix + rest))
        except ValueError:
            continue  # Python's own refusal of a malformed address.
        assert not place.is_absolute()
        assert ".." not in place.parts


def test_a_url_whose_path_no_file_system_takes_has_a_place_too(tmp_path: Path):
    kept = mirror.Mirror(tmp_path)
    dataset = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main"
    for path in ("x" * 300, "%E4%BD%A0" * 200, "a%00b", f"{'y' * 256}/z.txt"):
        for base in ("https://a.example", dataset):
            assert kept.find(f"{base}/{path}") is None
            file = tmp_path / mirror.mirror_path(f"{base}/{path}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x")
            assert kept.read(f"{base}/{path}") == b"x"


def test_present_files_are_recorded_and_a_changed_one_is_named(tmp_path: Path):
    kept = mirror.Mirror(tmp_path)
    (tmp_path / "os/t1").mkdir(parents=True)
    (tmp_path / "os/t1/a b.txt").write_bytes(b"one")
    missing = "https://a.example/x.pdf"
    found = {entry.url: entry for entry in kept.survey([parse_task(INFEASIBLE, download(OURS, missing))])}
    assert found[OURS].state == "present"
    assert found[OURS].sha256 == hashlib.sha256(b"one").hexdigest()
    assert (found[missing].state, found[missing].pages) == ("missing", ("os/t1",))
    (tmp_path / "os/t1/a b.txt").write_bytes(b"two")
    assert [entry.state for entry in mirror.Mirror(tmp_path).survey([parse_task(INFEASIBLE, download(OURS))])] == [
        "changed"
    ]


def test_a_pointer_of_git_lfs_is_no_file(tmp_path: Path):
    (tmp_path / "os/t1").mkdir(parents=True)
    (tmp_path / "os/t1/a b.txt").write_bytes(mirror.LFS_POINTER + b"v1\noid sha256:0\nsize 3\n")
    kept = mirror.Mirror(tmp_path)
    assert kept.find(OURS) is None
    assert [entry.state for entry in kept.survey([parse_task(INFEASIBLE, download(OURS))])] == ["pointer"]
