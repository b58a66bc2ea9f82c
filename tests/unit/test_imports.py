"""Which part may import which: a stray torch import is found here, not by a user of the other environment."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("topics", "dart_streams", "workers", "trainer")
MAY_IMPORT = {
    "topics": {"topics"},
    "dart_streams": {"topics", "dart_streams"},
    "workers": {"topics", "dart_streams", "workers"},
    "trainer": {"topics", "dart_streams", "trainer"},
}
MODEL_LIBRARIES = {"torch", "torchvision", "vllm", "transformers", "safetensors", "tokenizers"}
MODEL_SIDE = ("dart_streams/policy/", "workers/rollout/", "trainer/")
ONLY_IN_TOPICS = {"msgspec", "typing", "topics"}

FILES = sorted(path.relative_to(ROOT) for name in OURS for path in (ROOT / name).rglob("*.py"))


def imports_of(file: Path) -> set[str]:
    """Return the full names a module imports, wherever in the file it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; name the module in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(file: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(file)}


def is_model_side(file: Path) -> bool:
    return str(file).startswith(MODEL_SIDE)


def test_there_are_modules_to_check():
    assert len(FILES) > 40


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_module_imports_only_what_its_part_may(file: Path):
    part = file.parts[0]
    assert tops(file) & set(OURS) <= MAY_IMPORT[part]
    if part == "topics":
        assert tops(file) <= ONLY_IN_TOPICS
    if not is_model_side(file):
        assert not tops(file) & MODEL_LIBRARIES


def closure(start: str) -> set[str]:
    """Return every module of ours that importing ``start`` may import, itself included."""
    by_name = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        while name and name not in by_name:
            name = name.rpartition(".")[0]
        if not name or name in seen:
            continue
        seen.add(name)
        todo += [name.rpartition(".")[0], *imports_of(by_name[name])]
    return seen


@pytest.mark.parametrize(
    "start", ["dart_streams.cli.main", "workers.env.main", "workers.recorder.main", "workers.curator.main"]
)
def test_a_process_of_the_streams_environment_reaches_no_model_library(start: str):
    for name in closure(start):
        path = ROOT / Path(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert not tops(file.relative_to(ROOT)) & MODEL_LIBRARIES, name


@pytest.mark.skipif(find_spec("torch") is not None, reason="the model environment has torch, and no Faust")
def test_everything_but_the_model_side_imports_without_torch():
    modules = [
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in FILES
        if not is_model_side(file) and file.name != "__main__.py"
    ]
    code = f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_starts_without_the_libraries_of_any_process():
    code = "import sys, dart_streams.cli.main as m; m.build(['up']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & (
        MODEL_LIBRARIES | {"faust", "aiohttp", "aiokafka", "cassandra", "matplotlib", "workers", "trainer"}
    )
