"""A function of a module is a verb, a verb with its object, or a noun of two words; a boolean may be a participle."""

import ast
import re
from pathlib import Path

import pytest

from tests.sources import PRODUCT, ROOT

PACKAGES = (*PRODUCT, "benchmarks", "examples", "docs")
VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text().split())
"""Verbs that stand alone: of the field, or plain English."""
GUEST = "plugins/desktops/dart_desktops/desktop/guest/pyautogui"
OTHERS_NAMES = {f"{GUEST}.py", f"{GUEST}_further.py", "workers/curator/agents.py"}
"""Modules whose functions have the names of another package's interface, or of Faust's agents."""
PROJECTS = (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
ENTRY_POINTS = frozenset(re.findall(r'= "[\w.]+:(\w+)"', "".join(map(Path.read_text, PROJECTS))))
"""Functions that the package's metadata names."""
REGISTERED = ("command", "callback")
"""Decorators of commands, whose functions are called as on the command line."""


def functions(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.parse(file.read_text()).body
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_well_named(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    name = node.name.strip("_")
    is_boolean = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
    is_command = any(word in ast.unparse(each) for each in node.decorator_list for word in REGISTERED)
    return (
        "_" in name or name in VERBS or name in ENTRY_POINTS or node.name.startswith("__") or is_boolean or is_command
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_of_modules_are_verbs_or_two_words(package: str):
    files = [path for path in (ROOT / package).rglob("*.py") if str(path.relative_to(ROOT)) not in OTHERS_NAMES]
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in files
        for node in functions(path)
        if not is_well_named(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_who_expects_malformed_bytes_expects_deeply_nested_ones():
    """msgspec raises RecursionError for them, which is no DecodeError; one place has a message for each."""
    caught = re.compile(r"\b(?:except|suppress)\b.*msgspec\.DecodeError(?!.*RecursionError)")
    files = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    assert [path.name for path in files for _ in caught.finditer(path.read_text())] == ["text.py"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def found(): ...", False),
        ("def table() -> dict: ...", False),
        ("def fenced() -> bool: ...", True),
        ("def read(): ...", True),
        ("async def read_records(): ...", True),
        ("@app.command()\ndef up(): ...", True),
    ],
)
def test_the_rule_itself(code: str, expected: bool):
    [node] = ast.parse(code).body
    assert is_well_named(node) is expected
