"""Files of a local copy of the data set: where they are found, and what is refused."""

from pathlib import Path

import pytest

from dart_desktops.osworld import mirror
from dart_desktops.osworld.local_copy import LocalCopy, take_files
from dart_desktops.osworld.mirror import FileDigest, Mirror
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.errors import UserError
from plugins.desktops.tests.unit.osworld.parsed_tasks import comparison, download, parse_task

BASE = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main"


def task(*paths: str) -> OsworldTask:
    return parse_task(
        comparison("compare_text_file", f"{BASE}/os/t1/gold.txt"), download(*(f"{BASE}/{p}" for p in paths))
    )


def write_copy(folder: Path, **files: bytes) -> Path:
    """Write files of a copy; ``__`` in a name stands for a slash, and the suffix is added."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def outcomes(folder: Path, copy: Path, *paths: str, link: bool = False) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {file.path: file.outcome for file in take_files(Mirror(folder), [task(*paths)], LocalCopy(copy), link)}


def test_files_are_found_by_path_anywhere_and_else_by_name(tmp_path: Path):
    copy = write_copy(
        tmp_path / "copy",
        snapshots__main__os__t1__a=b"right",
        snapshots__main__os__t2__a=b"another task's",
        downloads__gold=b"by its name",
    )
    own = tmp_path / "mirror"
    assert outcomes(own, copy, "os/t1/a.txt", "os/t1/none.txt") == {
        "os/t1/a.txt": "taken",
        "os/t1/gold.txt": "taken",
        "os/t1/none.txt": "absent",
    }
    assert Mirror(own).read(f"{BASE}/os/t1/a.txt") == b"right"
    assert Mirror(own).read(f"{BASE}/os/t1/gold.txt") == b"by its name"
    assert not any(known.made for known in Mirror(own).recorded().values())
    assert outcomes(own, copy, "os/t1/a.txt") == {}, "what is there is left alone"


def test_a_name_of_several_contents_is_ambiguous_a_pointer_is_no_file(tmp_path: Path):
    copy = write_copy(
        tmp_path / "copy",
        one__a=b"1",
        two__a=b"2",
        one__gold=b"same",
        two__gold=b"same",
        os__t1__big=mirror.LFS_POINTER + b"v1\noid sha256:0\nsize 3\n",
    )
    assert outcomes(tmp_path / "mirror", copy, "os/t1/a.txt", "os/t1/big.txt") == {
        "os/t1/a.txt": "ambiguous",
        "os/t1/big.txt": "pointer",
        "os/t1/gold.txt": "taken",
    }
    assert not list((tmp_path / "mirror").rglob("partial"))


def test_a_file_of_another_digest_than_recorded_is_refused(tmp_path: Path):
    copy = write_copy(tmp_path / "copy", os__t1__a=b"changed", os__t1__gold=b"gold")
    own = tmp_path / "mirror"
    own.mkdir()
    Mirror(own).record({"os/t1/a.txt": FileDigest("0" * 64, 1)})
    Mirror(copy).record({"os/t1/gold.txt": FileDigest("1" * 64, 1)})
    assert outcomes(own, copy, "os/t1/a.txt") == {"os/t1/a.txt": "changed", "os/t1/gold.txt": "changed"}
    assert not [path for path in own.rglob("*.txt") if path.is_file()]


def test_real_files_replace_placeholders_and_made_ones_stay_marked(tmp_path: Path):
    own = write_copy(tmp_path / "mirror", os__t1__a=b"made")
    Mirror(own).record({"os/t1/a.txt": FileDigest(mirror.hash_file(own / "os/t1/a.txt"), 4, made=True)})
    copy = write_copy(tmp_path / "copy", os__t1__a=b"real", os__t1__gold=b"made there")
    Mirror(copy).record({"os/t1/gold.txt": FileDigest(mirror.hash_file(copy / "os/t1/gold.txt"), 10, made=True)})
    assert set(outcomes(own, copy, "os/t1/a.txt").values()) == {"taken"}
    assert Mirror(own).read(f"{BASE}/os/t1/a.txt") == b"real"
    assert {place: known.made for place, known in Mirror(own).recorded().items()} == {
        "os/t1/a.txt": False,
        "os/t1/gold.txt": True,
    }


@pytest.mark.parametrize("link", [True, False])
def test_links_share_the_files_of_the_copy_and_copies_do_not(tmp_path: Path, link: bool):
    copy = write_copy(tmp_path / "copy", os__t1__a=b"a", os__t1__gold=b"gold")
    outcomes(tmp_path / "mirror", copy, "os/t1/a.txt", link=link)
    shared = (tmp_path / "mirror/os/t1/a.txt").samefile(copy / "os/t1/a.txt")
    assert shared is link


def test_a_missing_copy_is_the_users_error(tmp_path: Path):
    with pytest.raises(UserError, match="no such folder"):
        LocalCopy(tmp_path / "none")
