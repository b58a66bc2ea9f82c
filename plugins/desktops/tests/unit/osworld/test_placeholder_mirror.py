"""Substitutes of our own making: what is made, where, and that it says so."""

import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dart_desktops.osworld import mirror, placeholder_mirror, sidecar, tasks
from dart_desktops.osworld.mirror import Mirror
from dart_desktops.osworld.placeholders import pictures, programs
from dart_desktops.osworld.placeholders.request import FileRequest
from dart_streams.errors import ServiceUnavailable
from plugins.desktops.tests.unit.osworld.parsed_tasks import INFEASIBLE, comparison, download, parse_task, step

BASE = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main/os"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment that can write texts, for which no library is needed."""
    (tmp_path / "env/bin").mkdir(parents=True)
    program = tmp_path / "env/bin/python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return tmp_path / "env"


def task(*names: str, gold: str) -> tasks.OsworldTask:
    files = download(*(f"{BASE}/{name}" for name in names))
    return parse_task(comparison("compare_text_file", f"{BASE}/{gold}"), files)


def test_what_is_missing_is_made_once_and_recorded_as_made(tmp_path, environment):
    (tmp_path / "mirror/os").mkdir(parents=True)
    (tmp_path / "mirror/os/there.txt").write_text("OSWorld's own")
    own = Mirror(tmp_path / "mirror")
    wanted = [task("start.txt", "there.txt", "film.ogv", gold="gold.txt")]
    assert placeholder_mirror.fill(own, wanted, environment) == 2
    assert own.read(f"{BASE}/there.txt") == b"OSWorld's own"
    start, gold = own.read(f"{BASE}/start.txt").decode(), own.read(f"{BASE}/gold.txt").decode()
    assert gold == f"Pear\n{start}", "the finished one has a word more"
    assert own.find(f"{BASE}/film.ogv") is None, "a kind that cannot be made"
    assert {place: known.made for place, known in own.recorded().items() if known.made} == {
        "os/start.txt": True,
        "os/gold.txt": True,
    }
    assert placeholder_mirror.fill(own, wanted, environment) == 0


def test_a_file_that_some_task_starts_from_is_not_finished_for_another(tmp_path, environment):
    (tmp_path / "mirror").mkdir()
    own = Mirror(tmp_path / "mirror")
    assert placeholder_mirror.fill(own, [task("a.txt", gold="b.txt"), task("b.txt", gold="a.txt")], environment) == 2
    assert own.read(f"{BASE}/a.txt") == own.read(f"{BASE}/b.txt")


def test_a_missing_evaluators_environment_names_the_command_to_make_it(tmp_path):
    with pytest.raises(ServiceUnavailable, match="run `make osworld`"):
        placeholder_mirror.fill(Mirror(tmp_path), [], tmp_path / "none")


def test_an_environment_that_cannot_write_says_why(tmp_path, environment):
    (environment / "bin/python").write_text("#!/bin/sh\necho no openpyxl >&2\nexit 1\n")
    with pytest.raises(ServiceUnavailable, match="no openpyxl"):
        placeholder_mirror.fill(Mirror(tmp_path), [task("a.txt", gold="b.txt")], environment)


def test_the_environment_of_the_evaluators_is_found_from_any_folder():
    assert Path(__file__).parents[5] / ".venv/osworld" == sidecar.ENVIRONMENT


def test_a_file_that_cannot_be_written_is_missing_and_the_others_are_made(tmp_path, environment):
    (tmp_path / "mirror").mkdir()
    own = Mirror(tmp_path / "mirror")
    assert placeholder_mirror.fill(own, [task("book.xlsx", gold="gold.txt")], environment) == 1
    assert own.find(f"{BASE}/book.xlsx") is None, "this environment has no library for workbooks"
    assert not list((tmp_path / "mirror").rglob("partial*"))


def test_an_archive_has_the_files_that_the_steps_find_in_it(tmp_path, environment):
    (tmp_path / "mirror").mkdir()
    own = Mirror(tmp_path / "mirror")
    steps = [
        step("download", files=[{"url": f"{BASE}/exam.zip", "path": "/home/user/x/exam.zip"}]),
        step("execute", command=["unzip", "/home/user/x/exam.zip", "-d", "/home/user/"]),
        step("launch", command="less '/home/user/exam/answers.txt' && ls /home/user/exam/folder", shell=True),
        step("open", path="/home/user/exam/my notes.txt"),
        step("open", path="/etc/motd"),
    ]
    plain = step("download", files=[{"url": f"{BASE}/projects.tar.xz", "path": "/home/user/.projects.tar.xz"}])
    assert placeholder_mirror.fill(own, [parse_task(INFEASIBLE, *steps, plain)], environment) == 2
    with zipfile.ZipFile(own.find(f"{BASE}/exam.zip") or "") as archive:
        assert archive.namelist() == ["exam/answers.txt", "exam/folder/notes.txt", "exam/my notes.txt"]
    with tarfile.open(own.find(f"{BASE}/projects.tar.xz") or "") as archive:
        assert [(member.name, member.uid) for member in archive] == [("projects/notes.txt", 1000)]


def test_a_file_without_a_known_suffix_is_of_the_type_of_its_place(tmp_path, environment):
    files = [{"url": f"{BASE}/slides.data", "path": "/home/user/a.pptx"}, {"url": f"{BASE}/x.bin", "path": "b"}]
    wanted = parse_task(comparison("compare_text_file", f"{BASE}/gold.file"), step("download", files=files))
    kinds = {Path(file.path).name: file.kind for file in placeholder_mirror.missing_files(Mirror(tmp_path), [wanted])}
    assert kinds == {"slides.data": ".pptx", "x.bin": ".bin", "gold.file": ".txt"}


def test_what_a_metric_compares_is_asked_of_the_files(tmp_path):
    rules = [{"type": "pivot_table"}, {"type": "sheet_data"}]
    book = {**comparison("compare_table", f"{BASE}/gold.xlsx"), "options": {"rules": rules}}
    for evaluator, aspects in (
        (comparison("compare_docx_tables", f"{BASE}/g.docx"), ["table"]),
        (book, ["pivot_table"]),
    ):
        missing = placeholder_mirror.missing_files(Mirror(tmp_path), [parse_task(evaluator)])
        assert [(file.finished, file.aspects) for file in missing] == [(True, aspects)]


def test_a_mail_profile_has_the_account_and_the_folders_of_the_tasks(tmp_path, environment):
    (tmp_path / "mirror").mkdir()
    own = Mirror(tmp_path / "mirror")
    urls = [f"{BASE}/thunderbird-profile.tar.gz", f"{BASE}/thunderbird-profile-blank.tar.gz"]
    assert placeholder_mirror.fill(own, [parse_task(INFEASIBLE, download(*urls))], environment) == 2
    for url, account in zip(urls, (True, False), strict=True):
        with tarfile.open(own.find(url) or "") as archive:
            read = {member.name: archive.extractfile(member) for member in archive}
            preferences = next(file for name, file in read.items() if name.endswith("/prefs.js"))
            assert preferences is not None
            assert (b'"mail.server.server1.hostname", "outlook.office365.com"' in preferences.read()) is account
            assert any(name.endswith("/Local Folders/Bills") for name in read) is account


@pytest.mark.parametrize(
    ("setup", "judge", "solution", "said"),
    [
        ("6f56bf42/setup.sh", "6f56bf42/eval.sh", "for d in dir1 dir2 dir3; do cp file1 $d; done", "in dir3."),
        (
            "5c1075ca/setup.sh",
            "5c1075ca/eval.sh",
            "cd test_environment; mkdir fails; cp --parents $(find . -name '*failed.ipynb') fails",
            "successful",
        ),
        ("4d117223/setup.sh", "4d117223/eval.sh", "find testDir -type f -exec chmod 644 {} +", "correct permissions"),
        (None, "5ced85fc/eval.sh", "printf '1<br/>\\n2<br/>\\n3<br/>\\n' >output.txt", "Success"),
        (None, "b337d106/eval.sh", "echo set number >.vimrc", "Set Number"),
    ],
)
def test_made_programs_judge_what_the_task_asks_for(tmp_path, setup, judge, solution, said):
    def run(script: str) -> str:
        own = script.replace("/home/user", str(tmp_path))
        done = subprocess.run(
            ["bash", "-c", own],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    if setup:
        run(programs.SCRIPTS[setup])
    assert said not in run(programs.SCRIPTS[judge])
    run(solution)
    assert said in run(programs.SCRIPTS[judge])


def test_a_layered_picture_has_its_layers_where_its_pointers_say(tmp_path):
    pytest.importorskip("PIL")
    path = tmp_path / "a.xcf"
    pictures.write_layers(path, FileRequest(str(path), ".xcf"))
    data = path.read_bytes()
    assert data.startswith(b"gimp xcf file\0")
    first, second, end = struct.unpack_from(">III", data, 14 + 12 + 9 + 8)
    assert end == 0
    for place, name in ((first, b"Object\0"), (second, b"Background\0")):
        width, height, _, length = struct.unpack_from(">IIII", data, place)
        assert (width, height, data[place + 16 : place + 16 + length]) == (pictures.WIDTH, pictures.HEIGHT, name)
    assert data[-4:] == b"\xff" * 4, "the last tile is the white layer's"
