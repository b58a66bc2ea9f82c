"""Move the package ``dart_streams.console`` to the top level, as ``console``.

``python deploy/moves/console.py`` runs in the root of a checkout of main without changes, under Python 3.11 or newer;
this file may lie anywhere. It takes a minute and sets up `.venv/streams`, for which it may need the package index. It
stops at the first text that it expects and does not find, and names it: main has changed there. Then
`git reset --hard && rm -rf console`, mend this file, and run it again.

1. `git mv` (MOVES). 2. Names of modules and paths in every text file, but for history (RENAMES). 3. Lists that name
folders, texts on the layout, and tests that read them. 4. `make dev`, the order of imports, ruff's format, the
generated pages and pictures. 5. Numbers of tests/unit/test_sizes.py that have fallen. All of it is in the index then;
`deploy/moves` is not.

After it:

- `make unit lint docs`, and commit; a subject is "console: the package moves to the top level".
- `make setup` and, where it is used, `make data`: each environment gets the new entry point only by that.
- The lanes that cover moved files: `make test-data test-launch test-page test-models test-compose`.
"""
# ruff: noqa: E501  Texts stand here as in their files.

import re
import shutil
import subprocess
import sys
from pathlib import Path


def git(*words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


MOVES = [("dart_streams/console", "console")]
RENAMES = [
    ("dart_streams.console", r"(?<![\w./])dart_streams\.console(?!\w)", "console"),
    ("dart_streams/console", r"(?<![\w-])dart_streams/console(?![\w-])", "console"),
]
HISTORY = ("CHANGELOG.md", "docs/lab/", "tests/unit/golden/", "tests/passed_lanes.json", "deploy/moves/")
BINARY = {".png", ".dart", ".bin", ".gz", ".svg"}


def move() -> None:
    """Move packages, in the index too, and remove the bytecode that is left of them."""
    for old, new in MOVES:
        git("mv", old, new)
        left = [path for path in Path(old).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert not left, f"files that git does not know: {left}"
        shutil.rmtree(old, ignore_errors=True)


def text_files() -> list[tuple[Path, str]]:
    """Return the files in which names are changed, with their texts."""
    found = []
    for name in git("ls-files").splitlines():
        path = Path(name)
        if not name.startswith(HISTORY) and path.suffix not in BINARY and not path.is_symlink():
            try:
                found.append((path, path.read_text()))
            except UnicodeDecodeError:
                continue
    return found


def rename() -> None:
    """Write the new names of modules and paths."""
    for path, before in text_files():
        text = before
        for literal, pattern, new in RENAMES:
            if literal in text:
                text = re.sub(pattern, new, text)
        if text != before:
            path.write_text(text)
    left = [str(path) for path, text in text_files() if any(literal in text for literal, _, _ in RENAMES)]
    assert not left, f"old names in {left}: no pattern of RENAMES fits them"


def sub(file: str, *pairs: tuple[str, str]) -> None:
    """Replace texts of a file, each of which has to be there."""
    path = Path(file)
    text = path.read_text()
    for old, new in pairs:
        assert old in text, (file, old)
        text = text.replace(old, new)
    path.write_text(text)


def package() -> None:
    """Correct what the package and its neighbour say of their place, and where they look for the checkout."""
    sub(
        "dart_streams/__init__.py",
        (
            '"""The library of every process, and ``console``, which starts and observes processes.\n',
            '"""The library of every process. Only :func:`open` imports from above it, when it is called.\n',
        ),
    )
    sub(
        "console/__init__.py",
        (
            "It imports every other package; none but benchmarks imports it.",
            "The core imports it by ``dart_streams.open`` alone.",
        ),
    )
    places = {"console/cli/options.py", "console/launch/provenance_reader.py"}
    for name in places:
        sub(name, ("CHECKOUT = Path(__file__).parents[3]\n", "CHECKOUT = Path(__file__).parents[2]\n"))
    above = re.compile(r"__file__\)(?:\.resolve\(\))?\.parents\[")
    found = {str(path) for path in Path("console").rglob("*.py") if above.search(path.read_text())}
    assert found == places, f"places counted from a file that moved: {found ^ places}"


def settings() -> None:
    """Name the package in the settings of setuptools, mypy and make, and in what builds and mounts it."""
    sub(
        "pyproject.toml",
        (
            'include = ["topics*", "dart_streams*", "workers*", "trainer*"]',
            'include = ["topics*", "dart_streams*", "workers*", "trainer*", "console*"]',
        ),
        (
            'packages = ["topics", "dart_streams", "workers", "trainer"]',
            'packages = ["topics", "dart_streams", "workers", "trainer", "console"]',
        ),
    )
    sub("Makefile", ("mypy topics dart_streams workers plugins", "mypy topics dart_streams workers console plugins"))
    for image in ("streams", "model"):
        sub(
            f"deploy/docker/{image}.Dockerfile",
            ("COPY trainer trainer\n", "COPY trainer trainer\nCOPY console console\n"),
        )
    sub(".dockerignore", ("!trainer\n", "!trainer\n!console\n"))
    mount = "    - ./trainer:/app/source/trainer:ro\n"
    sub("deploy/docker/dev.yml", (mount, mount + mount.replace("trainer", "console")))


def docs() -> None:
    """Correct the pages that list folders."""
    sub(
        "README.md",
        (
            "dart_streams/      the library of every process, and the command line\n",
            "dart_streams/      the library of every process\n",
        ),
        ("  console/         start, watch, report, replay, trace and repair a run\n", ""),
        (
            "plugins/           ",
            "console/           the command line: start, watch, report, replay, trace and repair a run\nplugins/           ",
        ),
    )
    sub(
        "docs/development.md",
        (
            "A package imports only from lower floors, not from its own.",
            "From the ground up they are `topics`, `dart_streams`, `workers` and `trainer`, `console`, `plugins`, `benchmarks` and `examples`. A package imports only from lower floors, not from its own.",
        ),
        (
            "`tests/unit/test_imports.py` checks this, for imports by name too.",
            "`tests/unit/test_imports.py` checks this, for imports by name too. Of a plug-in, only commands and checks import `console`.",
        ),
    )
    sub(
        "CHANGELOG.md",
        (
            "## Unreleased\n\n### Changed\n\n",
            "## Unreleased\n\n### Changed\n\n- The package `dart_streams.console` is the package `console`. Write scripts of `dart-streams launch` again, and build images again. `dart_streams.open` is as before.\n",
        ),
    )


def lists() -> None:
    """Name the package where tests list folders."""
    sub(
        "tests/sources.py",
        (
            'CORE = ("topics", "dart_streams", "workers", "trainer")',
            'CORE = ("topics", "dart_streams", "workers", "trainer", "console")',
        ),
    )
    sub(
        "tests/installed_wheel.py",
        ('"topics", "dart_streams", "workers", "trainer", "plugins")', '*CORE, "plugins")'),
        ("from tests.sources import ROOT\n", "from tests.sources import CORE, ROOT\n"),
    )
    sub("tests/compose/test_stack.py", ('"trainer", "plugins"', '"trainer", "console", "plugins"'))
    ours = 'OURS = ("topics", "dart_streams", "workers", "trainer", "benchmarks", "examples")\n'
    sub(
        "tests/unit/docs/test_site.py",
        (ours, ""),
        (
            """PATH = re.compile(
    r"(?:topics|dart_streams|workers|trainer|plugins|tests|benchmarks|examples|deploy|docs|requirements)/[\\w./-]*\\w/?"
)
""",
            ours.replace('"trainer"', '"trainer", "console"')
            + """PATH = re.compile(rf"(?:{'|'.join(OURS)}|plugins|tests|deploy|docs|requirements)/[\\w./-]*\\w/?")\n""",
        ),
    )
    sub(
        "tests/unit/docs/test_glossary.py",
        ("(?:topics|dart_streams|workers|trainer)", "(?:topics|dart_streams|workers|trainer|console)"),
    )
    sub(
        "tests/unit/deploy/test_images.py",
        ('for path in (ROOT / "dart_streams").rglob', "for name in CORE for path in (ROOT / name).rglob"),
        ("import ROOT\n", "import CORE, ROOT\n"),
        ("(topics|dart_streams|workers|trainer)", "(topics|dart_streams|workers|trainer|console)"),
    )


def others() -> None:
    """Correct tests of the order of imports, and of an older release, whose command line is where it was."""
    sub(
        "tests/unit/test_imports.py",
        (
            'DOORS = {("console.cli.bench", "benchmarks.commands")}\n"""``dart-streams bench`` opens the benchmarks of a checkout by name; the wheel has none."""\n',
            'DOORS = {("console.cli.bench", "benchmarks.commands"), ("dart_streams", "console.datasets.recorded_run")}\n"""Imports that go up when asked: by ``dart-streams bench`` in a checkout, and by ``dart_streams.open``."""\n',
        ),
        ('BARE = {"dart_streams", "workers", "console"}', 'BARE = {"workers", "console"}'),
        (
            "def test_learning_reads_values_only():\n",
            """def test_plug_ins_import_the_console_for_commands_and_checks_only():
    users = {name for name, file in MODULES.items() if file.parts[0] == "plugins" and "console" in tops(file)}
    assert {name.rpartition(".")[2] for name in users} == {"command", "checks"}


def test_learning_reads_values_only():
""",
        ),
        (
            """    tree = ast.parse((ROOT / file).read_text())
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } | {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
""",
            """    nodes = list(ast.walk(ast.parse((ROOT / file).read_text())))
    parts = {f"{node.module}.{one.name}" for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
    return parts | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
""",
        ),
    )
    sub(
        "tests/unit/console/datasets/test_recorded_run.py",
        (
            "print([m for m in ('msgspec', 'kafka', 'cassandra') if m in sys.modules])",
            "print({'console', 'msgspec', 'kafka', 'cassandra'} & {*sys.modules})",
        ),
        ('assert printed.strip() == "[]"', 'assert printed.strip() == "set()"'),
    )
    sub(
        "tests/upgrade/deployment.py",
        (
            '"""A release: its name here, and the folder of its files."""\n\n    name: str\n    root: Path\n',
            '"""A release: its name here, the folder of its files, and the module of its command line."""\n\n    name: str\n    root: Path\n    cli: str = "console.cli"\n',
        ),
        ('"-m", "console.cli", *arguments]', '"-m", self.cli, *arguments]'),
        (
            'OLD, NEW = Release("old", HOME / OLD_REVISION), Release("new", ROOT)\n',
            'OLD, NEW = Release("old", HOME / OLD_REVISION, "dart_streams.console.cli"), Release("new", ROOT)\n',
        ),
    )


def finish() -> None:
    """Install the package at its new place; sort imports, format and generate."""
    python, ruff = ".venv/streams/bin/python", ".venv/streams/bin/ruff"
    for command in (
        ["make", "dev"],
        [ruff, "check", "-q", "--select", "I", "--fix", "."],
        [ruff, "format", "-q", "."],
        [python, "docs/pictures/draw.py"],
        ["make", "reference"],
    ):
        subprocess.run(command, check=True)


def lower() -> None:
    """Lower the numbers of lines that have fallen."""
    sys.path.insert(0, ".")
    from tests.sources import CORE, PRODUCT, TESTS

    def lines(*folders: str) -> list[int]:
        return [len(p.read_text().splitlines()) for name in folders for p in Path(name).rglob("*.py")]

    counts = {
        "PRODUCT_LINES": sum(lines(*PRODUCT)),
        "CORE_LINES": sum(lines(*CORE)),
        "TEST_LINES": sum(lines(*TESTS)) + len(Path("conftest.py").read_text().splitlines()),
        "CORE_TEST_LINES": sum(lines("tests")),
    }
    sizes = Path("tests/unit/test_sizes.py")
    for name, count in counts.items():
        text = sizes.read_text()
        [bound] = re.findall(rf"^{name} = ([\d_]+)$", text, re.MULTILINE)
        assert count <= int(bound), f"{name} would rise to {count}"
        sizes.write_text(text.replace(f"\n{name} = {bound}\n", f"\n{name} = {count:_}\n"))


def main() -> None:
    """Move, rename, edit and generate, all into the index."""
    assert not git("status", "--porcelain", "--untracked-files=no"), "the checkout has changes: commit them first"
    assert not Path("console").exists(), "console is there, of another run: remove it"
    for step in (move, rename, package, settings, docs, lists, others, finish, lower):
        step()
    git("add", "-A", "--", ".", ":!deploy/moves")


if __name__ == "__main__":
    main()
