"""Files that a policy has spoiled, scored by OSWorld's own metrics: each loses its reward, and none is a fault."""

import io
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from dart_desktops.osworld import placeholder_mirror, sidecar, tasks
from dart_desktops.osworld.machine import MachineEndpoint
from dart_desktops.osworld.mirror import Mirror
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.test_osworld_evaluators import LIMIT_S, FilesOnly, Judge
from tests.answering import answering

pytestmark = [pytest.mark.asyncio(loop_scope="module"), osworld_needs.EVALUATORS]
METRICS = {
    ".xlsx": "compare_table",
    ".docx": "compare_docx_files",
    ".pptx": "compare_pptx_files",
    ".pdf": "compare_pdfs",
    ".png": "compare_images",
    ".zip": "compare_zip_files",
    ".json": "check_json_settings",
    ".csv": "check_csv",
    ".xml": "check_accessibility_tree",
}
OPTIONS = {".xlsx": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}}
RULES: dict[str, tuple[bytes, Any]] = {
    ".json": (b'{"a": 1}', {"expected": {"a": 1}}),
    ".csv": (b"fruit\npear\n", {"expect": [{"fruit": "pear"}]}),
    ".xml": (b"<tree><pear name='fruit'/></tree>", [{"selectors": ["pear"]}]),
}
"""Right contents of formats without placeholders, and the rules that they meet."""
OFFICE, DEEP, BOMB_BYTES = (".xlsx", ".docx", ".pptx"), 100_000, 2**29
PARTS = ("document.xml", "sheet1.xml", "presentation.xml")


def with_header(flags: int, method: int) -> Callable[[bytes], bytes]:
    """Return a change of all headers of a ZIP file."""

    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = content.find(mark)
            while at >= 0:
                struct.pack_into("<HH", changed, at + place, flags, method)
                at = content.find(mark, at + 4)
        return bytes(changed)

    return change


def as_bomb(content: bytes) -> bytes:
    """Return a ZIP file whose main part has become half a gigabyte."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(packed, "w", 8, compresslevel=1) as bomb:
        main = next((name for name in source.namelist() if name.endswith(PARTS)), source.namelist()[-1])
        for name in source.namelist():
            bomb.writestr(name, b"<a>" * (BOMB_BYTES // 3) if name == main else source.read(name))
    return packed.getvalue()


def huge(content: bytes) -> bytes:
    """Return a PNG that declares 60,000 pixels each way."""
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


LAUGHS = b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 12))
SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "garbage": lambda _: bytes(n * 167 % 251 for n in range(5000)),
    "zeros": lambda content: bytes(len(content)),
    "another format": lambda content: b"%PDF-1.7\n" if content.startswith(b"\x89PNG") else b"\x89PNG\r\n\x1a\n",
    "OLE": lambda _: bytes.fromhex("d0cf11e0a1b11ae1") + bytes(1024),
}
OF_KIND: dict[str, dict[str, Callable[[bytes], bytes]]] = {
    kind: {
        "method 99": with_header(0, 99),
        "encrypted": with_header(1, 8),
        "bomb": as_bomb,
        "no member": lambda _: b"PK\x05\x06" + bytes(18),
    }
    for kind in (*OFFICE, ".zip")
} | {
    ".pdf": {"no object": lambda _: b"%PDF-1.7\nstartxref\n0\n%%EOF"},
    ".png": {"huge": huge},
    ".json": {
        "deep": lambda _: b"[" * DEEP,
        "list": lambda _: b"[1]",
        "digits": lambda _: b'{"a": ' + b"9" * 5000 + b"}",
        "no UTF-8": lambda _: b'{"a": "\xff"}',
    },
    ".csv": {
        "no UTF-8": lambda _: b"fruit\n\xff\n",
        "field": lambda _: b"fruit\n" + b"x" * 2**18,
        "no row": lambda _: b"\n",
    },
    ".xml": {
        "laughs": lambda _: b'<!DOCTYPE t [<!ENTITY a0 "ha">' + LAUGHS + b"]><t>&a11;</t>",
        "deep": lambda _: b"<a>" * DEEP,
    },
}
CASES = [(kind, name) for kind in METRICS for name in {**SPOILED, **OF_KIND[kind]}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Judge]:
    """The evaluators, with a mirror of a right file for each kind."""
    machine, started = FilesOnly(), sidecar.EvaluatorSidecar()
    mirror = Mirror(tmp_path_factory.mktemp("mirror"))
    placeholder_mirror.fill(mirror, [task_of(kind) for kind in METRICS if kind not in RULES])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecar, "CPU_SHARE", 0.025)
        async with answering(machine.answer) as url:
            found = Judge(machine, MachineEndpoint(url=url), started)
            for kind in METRICS:
                right = RULES[kind][0] if kind in RULES else mirror.read(address(kind))
                (found.cache("t1") / f"gold{kind}").write_bytes(right)
            yield found
            await started.stop()


def address(kind: str) -> str:
    return f"https://a.example/gold{kind}"


def task_of(kind: str) -> tasks.OsworldTask:
    """Return a task whose metric reads a file of a kind."""
    result = {"type": "vm_file", "path": f"/home/user/a{kind}", "dest": f"a{kind}"}
    if kind == ".xml":
        result = {"type": "accessibility_tree"}
    expected: dict[str, Any] = {"type": "cloud_file", "path": address(kind), "dest": f"gold{kind}"}
    if kind in RULES:
        expected = {"type": "rule", "rules": RULES[kind][1]}
    evaluator = {"func": METRICS[kind], "result": result, "expected": expected, "options": OPTIONS.get(kind, {})}
    return tasks.parse({"evaluator": evaluator}, "os", "t1")


async def reward(judge: Judge, kind: str, change: Callable[[bytes], bytes]) -> float:
    """Return what a changed file is worth in an episode."""
    content = change((judge.cache("t1") / f"gold{kind}").read_bytes())
    judge.machine.files[f"/home/user/a{kind}"], judge.machine.said = content, content.decode("latin-1")
    try:
        return await judge.evaluators.evaluate(task_of(kind), judge.endpoint, judge.cache("t1"), 4 * LIMIT_S)
    except sidecar.UnreadableResult:
        return 0.0


@pytest.mark.parametrize("kind", METRICS)
async def test_a_right_file_is_worth_1(judge: Judge, kind: str):
    assert await reward(judge, kind, lambda content: content) == 1


@pytest.mark.parametrize(("kind", "name"), CASES)
async def test_a_spoiled_file_loses_its_reward_and_is_no_fault(judge: Judge, kind: str, name: str):
    assert await reward(judge, kind, {**SPOILED, **OF_KIND[kind]}[name]) < 1
