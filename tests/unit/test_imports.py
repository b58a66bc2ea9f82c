"""The floors of the house: a module imports from its own package and from lower floors only, also by name.

A stray torch import is found here too, not by a user of the other environment.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from console.cli.main import COMMANDS
from tests.sources import PRODUCT, ROOT

FLOORS: tuple[tuple[str, ...], ...] = (
    ("topics",),
    ("dart_streams", "dart_streams.actions"),
    ("dart_streams.config",),
    ("dart_streams.connection", "dart_streams.telemetry"),
    ("dart_streams.bus", "dart_streams.store", "dart_streams.episodes"),
    ("dart_streams.curation", "dart_streams.policy"),
    ("workers", "trainer"),
    ("console",),
    ("dart_recipes", "dart_data", "dart_desktops"),
    ("dart_phones",),
    ("dart_adapters",),
    ("benchmarks",),
    ("examples",),
)
"""From the ground up. Packages on one floor do not import each other. ``dart_streams`` stands for its loose modules.
Above the console are three floors of plug-ins, so none is imported by the core, which finds them by entry points.
"""
INNER_FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "trainer": (
        ("trainer.objective", "trainer.ranks"),
        ("trainer.corrections",),
        ("trainer.data",),
        ("trainer.hooks",),
        ("trainer.learning",),
        ("trainer",),
    ),
    "workers": (
        ("workers.runtime",),
        ("workers.env", "workers.rollout", "workers.recorder", "workers.curator"),
        ("workers.env.backends",),
        ("workers.env.main",),
    ),
    "dart_desktops": (
        ("dart_desktops.desktop",),
        ("dart_desktops.osworld",),
        ("dart_desktops.server", "dart_desktops.command", "dart_desktops.checks"),
    ),
    "console": (
        ("console.runs",),
        ("console.lineage", "console.repair", "console.sizing"),
        ("console.bundles",),
        ("console.monitor",),
        ("console.views",),
        ("console.launch",),
        ("console.cli",),
    ),
}
"""The floors within a package. A backend imports the environment's protocol; only ``workers.env.main`` opens one."""
LEARNING_READS = {f"trainer.data.{name}" for name in ("samples", "rows", "collate", "successes")}
"""Learning takes samples, and values to imitate; it knows neither Kafka nor the store."""
DOORS = {("console.cli.bench", "benchmarks.commands"), ("dart_streams", "dart_data.recorded_run")}
DOORS |= {("dart_streams", "dart_streams.config.entry_points")}
"""Imports that go up, when asked: by ``dart-streams bench`` in a checkout, and by ``dart_streams.open``."""
FOLDERS = ("benchmarks", "examples", *PRODUCT)
OURS = tuple(Path(folder).name for folder in FOLDERS)
MODEL_LIBRARIES = {"torch", "torchvision", "vllm", "transformers", "safetensors", "tokenizers"}
DATA_LIBRARIES = {"pyarrow", "datasets", "tensorboard", "wandb", "mlflow", "trackio"}
DATA_SIDE = ("plugins/data/dart_data/parquet.py", "plugins/data/dart_data/tracker/backends/")
"""What needs the environment .venv/data; nothing of it is imported before a command asks for it."""
MODEL_SIDE = (
    "dart_streams/policy/",
    "plugins/recipes/dart_recipes/gui_actor/",
    "plugins/data/dart_data/sft/",
    "console/bundles/retrain.py",
    "workers/rollout/",
    "trainer/",
    "benchmarks/",
    "examples/objective.py",
)
SANDBOX_SIDE = "plugins/desktops/dart_desktops/desktop/guest/"
"""What the system's Python runs within a sandbox, which has nothing else of the project."""
ONLY_IN_SANDBOXES = {"Xlib", "PIL", "aiohttp", "pyatspi", "pyautogui", "pyscreeze", "uno", "dart_desktops"}
ONLY_IN_SANDBOXES |= sys.stdlib_module_names
EVALUATOR_SIDE = "plugins/desktops/dart_desktops/osworld/evaluator/"
"""What runs in .venv/osworld, beside OSWorld's package, which has nothing else of the project."""
PROVIDER = "examples/osworld_provider.py"
"""What users run beside OSWorld's package."""
ONLY_IN_EVALUATOR = {"desktop_env", "requests", "tldextract", "dart_desktops"} | sys.stdlib_module_names
MCP_SIDE = "plugins/adapters/dart_adapters/mcp/"
"""What needs the package mcp, which `make mcp` installs."""
ONLY_IN_TOPICS = {"msgspec", "typing", "topics"}
DOTTED = re.compile(rf"({'|'.join(OURS)})(\.\w+)+(:\w+)?")

FILES = sorted(path.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py"))


def module_of(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[2:] if parts[0] == "plugins" else parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES}


TESTS = [path.relative_to(ROOT) for top in ("tests", "plugins") for path in (ROOT / top).rglob("tests/**/*.py")]


def test_what_tests_import_is_there():
    """Lanes that do not run on each change find a name that has moved too late."""
    sources = MODULES | {module_of(file): file for file in TESTS}
    for file in TESTS:
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.ImportFrom) and (source := sources.get(str(node.module))):
                words = {*re.findall(r"\w+", (ROOT / source).read_text())}
                gone = [each.name for each in node.names if f"{node.module}.{each.name}" not in sources]
                assert words.issuperset(gone), (file, node.lineno)


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Return the full names a module imports, wherever in the file it does so, by statement or by name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; name the module in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            if (name := known(node.value.partition(":")[0])) is not None:
                names.add(name)
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            package = str(node.values[0].value).rpartition(".")[0]
            if package in MODULES:
                names.add(package)
    return frozenset(names)


def known(name: str) -> str | None:
    """Return the longest module of ours that a dotted name begins with; a bare top-level name is no import."""
    while "." in name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name if "." in name else None


@cache
def floor_of(name: str, floors: tuple[tuple[str, ...], ...] = FLOORS) -> tuple[int, str]:
    """Return the floor of a module, and the longest package named there that the module belongs to."""
    named = {package: number for number, floor in enumerate(floors) for package in floor}
    package = name
    while package not in named:
        package = package.rpartition(".")[0]
        assert package, f"{name} is on no floor: put it into FLOORS"
    if package == "dart_streams":
        assert MODULES[name].parent == Path(package), f"{name} is in a package on no floor: put it into FLOORS"
    return named[package], package


def is_installed(library: str) -> bool:
    return library in sys.modules or find_spec(library) is not None  # Faust's module has no spec once it is imported


def tops(file: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(file)}


BARE = {"workers", "console"}
"""Packages that only hold packages of several floors."""


def test_there_are_modules_to_check():
    assert len(FILES) > 200
    assert imports_of(MODULES["console.cli.bench"]) >= {"benchmarks.commands"}, "by name"


def targets(file: Path) -> set[str]:
    """Return the modules of ours that a module imports, but for packages that only hold others."""
    names = {name if name in MODULES else name.rpartition(".")[0] for name in imports_of(file)}
    return {name for name in names if name in MODULES and name not in BARE and (module_of(file), name) not in DOORS}


def goes_down(name: str, target: str, floors: tuple[tuple[str, ...], ...]) -> bool:
    (mine, package), (theirs, other) = floor_of(name, floors), floor_of(target, floors)
    return theirs < mine or other == package


def test_imports_go_down_only():
    names = {name: MODULES[name] for name in MODULES if name not in BARE}
    assert not [(n, t) for n, file in names.items() for t in targets(file) if not goes_down(n, t, FLOORS)]


@pytest.mark.parametrize("package", INNER_FLOORS)
def test_imports_within_a_package_go_down_only(package: str):
    floors = INNER_FLOORS[package]
    names = [name for name in MODULES if name.startswith(f"{package}.") and name not in BARE]
    inner = [(n, t) for n in names for t in targets(MODULES[n]) if t.startswith(f"{package}.")]
    assert inner
    assert not [(n, t) for n, t in inner if not goes_down(n, t, floors)]


RECORDED = {"episode_export", "episode_rows", "recorded_run", "sft_set", "run_answers"}
"""Modules that read recorded runs."""


def test_plug_ins_import_the_console_for_commands_checks_and_records_only():
    users = {name for name, file in MODULES.items() if file.parts[0] == "plugins" and "console" in tops(file)}
    assert {name.rpartition(".")[2] for name in users} == {"command", "checks", "fine_tune"} | RECORDED


def test_learning_reads_values_only():
    learning = [name for name in MODULES if name.startswith("trainer.learning")]
    read = {target for name in learning for target in targets(MODULES[name]) if target.startswith("trainer.data.")}
    assert read <= LEARNING_READS


def test_topics_import_no_library_but_msgspec():
    assert not [file for file in FILES if file.parts[0] == "topics" and not tops(file) <= ONLY_IN_TOPICS]


def test_a_module_imports_no_library_of_another_environment():
    assert not [file for file in FILES if not str(file).startswith(MODEL_SIDE) and tops(file) & MODEL_LIBRARIES]
    others = [file for file in FILES if not str(file).startswith((*DATA_SIDE, "benchmarks/"))]
    assert not [file for file in others if tops(file) & DATA_LIBRARIES]


@pytest.mark.parametrize(
    ("folder", "libraries"), [(SANDBOX_SIDE, ONLY_IN_SANDBOXES), (EVALUATOR_SIDE, ONLY_IN_EVALUATOR)]
)
def test_what_runs_apart_from_the_project_imports_nothing_of_it(folder: str, libraries: set[str]):
    own = module_of(Path(folder))
    files = [file for file in FILES if str(file).startswith(folder)]
    assert files
    for file in files:
        assert tops(file) <= libraries, file
        assert all(name.startswith(own) for name in imports_of(file) if name.startswith("dart_")), file


def closure(start: str) -> set[str]:
    """Return every module of ours that importing ``start`` may import, itself included."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if not name or name in seen:
            continue
        seen.add(name)
        todo += [name.rpartition(".")[0], *statements_of(MODULES[name])]
    return seen


def statements_of(file: Path) -> set[str]:
    """Return what a module imports by statement; what it opens by name runs only when asked for."""
    nodes = list(ast.walk(ast.parse((ROOT / file).read_text())))
    parts = {f"{node.module}.{one.name}" for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
    return parts | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


@pytest.mark.parametrize(
    "start", ["console.cli.main", "workers.env.main", "workers.recorder.main", "workers.curator.main"]
)
def test_a_process_of_the_streams_environment_reaches_no_model_library(start: str):
    for name in closure(start):
        assert not {n.partition(".")[0] for n in statements_of(MODULES[name])} & MODEL_LIBRARIES, name


@pytest.mark.skipif(is_installed("torch"), reason="the model environment has torch, and no Faust")
def test_everything_but_the_model_side_imports_without_torch():
    left_out = (
        *MODEL_SIDE,
        *DATA_SIDE,
        SANDBOX_SIDE,
        EVALUATOR_SIDE,
        PROVIDER,
        *(() if is_installed("mcp") else (MCP_SIDE,)),
    )
    modules = [module_of(f) for f in FILES if not str(f).startswith(left_out) and f.name != "__main__.py"]
    code = f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


HEAVY_LIBRARIES = {"aiohttp", "aiokafka", "cassandra", "faust", "kafka", "matplotlib", "numpy", "opentelemetry", "PIL"}
HEAVY_LIBRARIES |= {"psutil", "structlog", "trainer", "workers"}


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_imports_no_heavy_library(command: str):
    code = (
        "import sys, console.cli.main as m, contextlib, io\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    m.build_app([{command!r}])([{command!r}, '--help'])\n"
        "print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & (MODEL_LIBRARIES | DATA_LIBRARIES | HEAVY_LIBRARIES)
    assert command == "bench" or not {name for name in loaded if name.startswith("dart_streams.config")}


@pytest.mark.skipif(not is_installed("faust"), reason="the model environment has no Faust")
def test_a_worker_starts_without_the_client_that_it_does_not_use():
    """Their client is aiokafka; kafka-python takes a fifth of the time that such a process takes to start."""
    workers = [f"workers.{kind}.main" for kind in ("env", "rollout", "recorder", "curator")]
    code = f"import sys, {', '.join(workers)}; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "kafka" not in ast.literal_eval(done.stdout)


def test_what_decoding_bytes_raises_has_one_name():
    """msgspec raises two further errors, which an ``except msgspec.DecodeError`` lets through."""
    product = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    named = {path.name for path in product if "msgspec.DecodeError" in path.read_text()}
    assert named - {"json_reader.py"} == {"text.py"}, "use MALFORMED"


def test_text_files_are_utf_8_in_any_locale():
    named = {
        f"{path.name}:{node.lineno}"
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read_text", "write_text")
        if "encoding" not in {keyword.arg for keyword in node.keywords}
    }
    assert named == set(), 'say encoding="utf-8"'
