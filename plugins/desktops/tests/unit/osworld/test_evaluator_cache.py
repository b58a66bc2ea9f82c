import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dart_desktops.osworld import evaluator_ports, sidecar
from dart_desktops.osworld.evaluator_cache import PREFIX, EvaluatorCache

KILLED = """
import os, signal, sys
from pathlib import Path
from dart_desktops.osworld.evaluator_cache import EvaluatorCache
cache = EvaluatorCache(Path(sys.argv[1]))
(cache.folder / "task").mkdir()
(cache.folder / "task/file").write_text("left")
os.kill(os.getpid(), signal.SIGKILL)
"""


def folders(parent: Path) -> set[Path]:
    return set(parent.glob(f"{PREFIX}*"))


def test_the_folder_of_a_killed_worker_is_removed_one_in_use_is_not(tmp_path: Path):
    in_use = EvaluatorCache(tmp_path)
    (in_use.folder / "file").write_text("in use")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert len(folders(tmp_path)) == 2
    following = EvaluatorCache(tmp_path)
    assert folders(tmp_path) == {in_use.folder, following.folder}
    assert (in_use.folder / "file").read_text() == "in use"
    in_use.remove()
    following.remove()
    following.remove()
    assert not folders(tmp_path)


def test_neither_files_nor_links_of_that_name_are_followed(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("kept")
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{PREFIX}file").write_text("kept")
    EvaluatorCache(tmp_path).remove()
    assert (tmp_path / "elsewhere/file").read_text() == (tmp_path / f"{PREFIX}file").read_text() == "kept"


@pytest.mark.parametrize(
    "line", [r'{"id": 1, "reason": "\ud83d"}', '{"id": 1, "x": ' + "[" * 3_000, "loading", "{}", "a" * 2**17]
)
async def test_a_line_that_is_no_result_ends_the_evaluation_at_once(tmp_path, line):
    (tmp_path / "line").write_text(line + "\n")
    own, pipe = sidecar.EvaluatorSidecar(), asyncio.subprocess.PIPE
    waiting = asyncio.get_running_loop().create_future()
    own._waiting[1] = waiting, evaluator_ports.ForwardedPorts("host")
    own.process = await asyncio.create_subprocess_exec(
        *("tail", "-n", "+1", "-f", str(tmp_path / "line")), stdout=pipe, start_new_session=True
    )
    assert own.process.stdout is not None
    await own._read_answers(own.process, own.process.stdout)
    assert waiting.result().score is None
    assert "the sidecar writes a line that can't be read" in waiting.result().reason
