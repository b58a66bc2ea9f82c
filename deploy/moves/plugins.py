"""Move the plug-ins out of the core: recipes, desktops, phones, adapters and the tracker, a distribution each.

``python deploy/moves/plugins.py`` runs in the root of a checkout of main, in which this folder is committed, under
Python 3.11 or newer. It takes a minute and sets up `.venv/streams`, for which it may need the package index. It stops
at the first text that it expects and does not find, and names it: main has changed there. Then
`git reset --hard && rm -rf plugins`, mend this file, commit it, and run it again.

1. `git mv` of packages and tests (MOVES). 2. Names of modules and paths in every text file, but for history (RENAMES).
3. New files: pyproject.toml and README.md of each plug-in, `__init__` of packages. 4. Lists that name folders, and
tests that read them. 5. `make dev`, ruff, the generated pages and pictures. All of it is in the index then, and this
file is deleted.

After it:

- `git apply --index deploy/moves/missing.patch`: the error of a plug-in that is missing, and the line of CHANGELOG.md.
  Where main has changed beside it, leave files out by `--exclude=CHANGELOG.md --exclude=tests/unit/test_sizes.py`.
- Lower the numbers of tests/unit/test_sizes.py to what its functions count.
- `git rm -rf deploy/moves`, then `make unit lint`, and commit; the subjects were "plugins: five distributions move out
  of the core" and "config: a plug-in that is missing is named with what installs it".
- `make setup` and, where it is used, `make data`: each environment gets the plug-ins only by that.
- The lanes of all files that moved: `make test-data test-adapters test-phone test-desktops test-osworld test-models`.
"""
# ruff: noqa: E501  Texts stand here as in their files.

import json
import re
import subprocess
import tomllib
from pathlib import Path


def git(*words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


D, T = "plugins/desktops/dart_desktops", "plugins/desktops/tests"
OLD_UNIT = "tests/unit/workers/env/backends"
MOVES = [
    ("tests/desktops", T),
    ("tests/desktops/test_demonstrate_desktops.py", f"{T}/test_demonstrate.py"),
    ("dart_streams/recipes", "plugins/recipes/dart_recipes"),
    ("workers/env/backends/desktop", f"{D}/desktop"),
    ("workers/env/backends/osworld", f"{D}/osworld"),
    ("workers/desktop_server", f"{D}/server"),
    ("dart_streams/console/cli/osworld.py", f"{D}/command.py"),
    ("dart_streams/console/cli/desktop_checks.py", f"{D}/checks.py"),
    ("workers/env/backends/phone", "plugins/phones/dart_phones"),
    ("workers/env/backends/adapters", "plugins/adapters/dart_adapters"),
    ("workers/tracker", "plugins/data/dart_data/tracker"),
    ("tests/unit/recipes", "plugins/recipes/tests"),
    ("tests/osworld/two_workers.py", f"{T}/two_workers.py"),
    ("tests/osworld", f"{T}/osworld"),
    ("tests/osworld_needs.py", f"{T}/osworld_needs.py"),
    (f"{OLD_UNIT}/desktop", f"{T}/unit/desktop"),
    (f"{OLD_UNIT}/osworld", f"{T}/unit/osworld"),
    ("tests/unit/workers/desktop_server", f"{T}/unit/server"),
    ("tests/unit/workers/env/test_keyboard.py", f"{T}/unit/test_keyboard.py"),
    ("tests/unit/console/cli/test_osworld_command.py", f"{T}/unit/test_osworld_command.py"),
    ("tests/unit/console/cli/test_desktop_checks.py", f"{T}/unit/test_desktop_checks.py"),
    ("tests/phone", "plugins/phones/tests/phones"),
    (f"{OLD_UNIT}/phone", "plugins/phones/tests/unit"),
    (f"{OLD_UNIT}/adapters/androidworld_stand_in.py", "tests/androidworld_stand_in.py"),
    (f"{OLD_UNIT}/adapters", "plugins/adapters/tests/unit"),
    ("tests/adapters/openenv_columns.py", "plugins/adapters/tests/openenv_columns.py"),
    ("tests/adapters/test_browsergym.py", "plugins/adapters/tests/test_browsergym.py"),
    ("tests/adapters/test_openenv.py", "plugins/adapters/tests/test_openenv.py"),
    ("tests/unit/workers/tracker", "plugins/data/tests/unit"),
    ("tests/data/test_tracker.py", "plugins/data/tests/test_tracker.py"),
    ("tests/conftest.py", "conftest.py"),
]
DOTTED = [  # longest first; the new name of a test's module is its path
    (old.removesuffix(".py").replace("/", "."), new.removesuffix(".py").replace("/", "."))
    for old, new in MOVES
    if not old.endswith("tests/conftest.py")
] + [("tests.adapters", "plugins.adapters.tests")]


def package_name(dotted: str) -> str:
    """Packages of plug-ins are imported without the folders above them."""
    return re.sub(r"^plugins\.\w+\.(dart_)", r"\1", dotted)


RENAMES = [(old, rf"(?<![\w./]){re.escape(old)}(?![\w])", package_name(new)) for old, new in DOTTED]
RENAMES += [
    (old, rf"(?<![\w/.-]){re.escape(old)}(?![\w-]|\.\w)", new)
    for old, new in [*MOVES, ("tests/adapters", "plugins/adapters/tests")]
]
RENAMES.append(("dart_streams/recipes", r"(?<=\./)dart_streams/recipes(?!\w)", "plugins/recipes/dart_recipes"))
RENAMES.sort(key=lambda names: -len(names[1]))


def move() -> None:
    """Move packages and tests, in the index too."""
    for old, new in MOVES:
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        git("mv", old if Path(old).exists() else f"{T}/{Path(old).name}", new)


def moved_file(name: str) -> str:
    """Return the new place of an old file."""
    for old, new in sorted(MOVES, key=lambda pair: -len(pair[0])):
        if name == old or name.startswith(f"{old}/"):
            return new + name[len(old) :]
    return name


def rename() -> None:
    """Write the new names of modules and paths."""
    for name in git("ls-files").splitlines():
        path = Path(name)
        history = ("CHANGELOG.md", "docs/lab/", "tests/unit/golden/", "tests/passed_lanes.json", "deploy/moves/")
        if name.startswith(history) or path.suffix in {".png", ".dart", ".bin", ".gz", ".svg"} or path.is_symlink():
            continue
        try:
            text = before = path.read_text()
        except UnicodeDecodeError:
            continue
        for literal, pattern, new in RENAMES:
            if literal in text:
                text = re.sub(pattern, new, text)
        if text != before:
            path.write_text(text)


def sub(file: str, *pairs: tuple[str, str]) -> None:
    """Replace texts of a file, each of which has to be there."""
    path = Path(file)
    text = path.read_text()
    for old, new in pairs:
        assert old in text, (file, old)
        text = text.replace(old, new)
    path.write_text(text)


PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "dart-{name}"
version = "{version}"
description = "{what}"
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.11,<3.14"
dependencies = [{needs}]
{entries}
[tool.setuptools.packages.find]
include = ["dart_{name}*"]
{data}"""
DATA = """
[tool.setuptools.package-data]
"*" = [{patterns}]
"""
GROUPS = {
    "recipes": {"training_recipes": None},
    "desktops": {
        "checks": {"desktop": "dart_desktops.checks:check_desktop", "osworld": "dart_desktops.checks:check_osworld"},
        "commands": {"osworld": "dart_desktops.command:app", "worker.desktops": "dart_desktops.server.main"},
        "environments": {
            "desktop": "dart_desktops.desktop.backend:DesktopBackend",
            "osworld": "dart_desktops.osworld.backend:OsworldBackend",
        },
    },
    "phones": {
        "checks": {"phone": "dart_phones.checks:check_phone"},
        "environments": {"phone": "dart_phones.backend:PhoneBackend"},
    },
    "adapters": {
        "environments": {
            "androidworld": "dart_adapters.androidworld:backend",
            "gymnasium": "dart_adapters.gymnasium:backend",
            "openenv": "dart_adapters.openenv:backend",
        }
    },
    "data": {"commands": {"worker.tracker": "dart_data.tracker.main"}},
}
WHAT = {
    "recipes": "Methods of other papers for dart-streams: settings and rules, a folder each",
    "desktops": "Sandboxed desktops and OSWorld's tasks for dart-streams",
    "phones": "Phones for dart-streams: real Android views by Robolectric, without an emulator",
    "adapters": "Environments of other projects for dart-streams: Gymnasium, OpenEnv, AndroidWorld",
    "data": "Experiment trackers for dart-streams",
}
NEEDS = {
    "recipes": ["dart-streams"],
    "desktops": ["dart-streams"],
    "phones": ["dart-streams", "dart-desktops"],
    "adapters": ["dart-streams", "dart-phones"],
    "data": ["dart-streams"],
}
PATTERNS = {"recipes": ["*.toml"], "phones": ["*.java"]}
READMES = {
    "recipes": """# dart-recipes

Methods of other papers, a folder each of `plugins/recipes/dart_recipes`: settings, rules and a page. An entry point names each. No rule of the core imports one.

- Install: `make dev` and `make setup` install it into their environments.
- Keys: [a table for each recipe](../../docs/configuration.md#backends-plug-ins-and-secured-services). [All recipes](../../docs/recipes/index.md), and [your own](../../docs/recipes/your-own.md).
- Tests: `make unit` runs `plugins/recipes/tests`. Those that need torch are in `tests/model`.
""",
    "desktops": """# dart-desktops

Real applications in sandboxes, OSWorld's tasks on them, and the server that leases desktops. `desktop/` has the backend and what runs in a sandbox. `osworld/` has machines and evaluators, and `server/` the leases.

- Install: `make desktop` adds the programs of desktops, `make osworld` those of OSWorld's tasks.
- Keys: [env.desktop](../../docs/configuration.md#envdesktop), [env.osworld](../../docs/configuration.md#envosworld). [Desktops](../../docs/how-to/desktop.md) and [OSWorld](../../docs/how-to/osworld.md) have the steps.
- Tests: `make test-desktops` and `make test-osworld`.
""",
    "phones": """# dart-phones

Phones as environments: real Android views in a process each, by Robolectric. `android/` has their applications in Java.

- Install: `make phone`. It needs the words and problems of dart-desktops.
- Keys: [env.phone](../../docs/configuration.md#envphone). [Phones](../../docs/how-to/phone.md) has the steps.
- Tests: `make test-phone`.
""",
    "adapters": """# dart-adapters

Environments of other projects: Gymnasium (BrowserGym), OpenEnv, and AndroidWorld's server. None of their code is imported here.

- Install: `make dev`. The other project is in an environment of its own; `make adapters` makes those of the tests.
- Keys: [env.installed](../../docs/configuration.md#envinstalled). [Environments](../../docs/how-to/environment.md) has the options of each.
- Tests: `make test-adapters`.
""",
    "data": """# dart-data

The process that copies a run's metrics and samples to TensorBoard, MLflow, wandb or trackio. The core has the export and import of data sets.

- Install: `make data` adds the trackers' libraries in `.venv/data`.
- Keys: [tracker](../../docs/configuration.md#tracker). [Data](../../docs/how-to/data.md#trackers) has the steps.
- Tests: `make test-data`.
""",
}


def projects() -> None:
    """Write what makes each plug-in a distribution, and take its entry points from the project's."""
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    recipes = dict(re.findall(r'^([\w-]+) = "dart_recipes\.(\w+)"$', Path("pyproject.toml").read_text(), re.MULTILINE))
    for name, groups in GROUPS.items():
        if name == "recipes":
            groups = {"training_recipes": {key: f"dart_recipes.{value}" for key, value in recipes.items()}}
        entries = "".join(
            f'\n[project.entry-points."dart_streams.{group}"]\n'
            + "".join(f'{json.dumps(key) if "." in key else key} = "{value}"\n' for key, value in table.items())
            for group, table in groups.items()
        )
        data = DATA.format(patterns=", ".join(map(json.dumps, PATTERNS[name]))) if name in PATTERNS else ""
        needs = ", ".join(map(json.dumps, NEEDS[name]))
        text = PROJECT.format(name=name, version=version, what=WHAT[name], needs=needs, entries=entries, data=data)
        Path(f"plugins/{name}/pyproject.toml").write_text(text)
        Path(f"plugins/{name}/README.md").write_text(READMES[name])
    Path(f"{D}/__init__.py").write_text(
        '"""Sandboxed desktops, OSWorld\'s tasks on machines, and the server that leases desktops."""\n'
    )
    Path("plugins/data/dart_data/__init__.py").write_text(
        '"""What takes a run\'s data elsewhere. It only reads the log, and nothing may depend on it."""\n'
    )
    Path("plugins/data/dart_data/tracker/__init__.py").write_text(
        '"""Copies metrics and samples to a tool, whose library is imported in its module of ``backends`` alone."""\n'
    )
    text = Path("pyproject.toml").read_text()
    begin = text.index('[project.entry-points."dart_streams.checks"]')
    end = text.index("[tool.setuptools.packages.find]")
    Path("pyproject.toml").write_text(text[:begin] + text[end:])


def settings() -> None:
    """Name the folders of plug-ins in the settings of ruff, pytest and mypy."""
    sub(
        "pyproject.toml",
        ('src = ["."]', 'src = [".", "plugins/*"]'),
        (
            '"tests/**" = ["D", "S", "TID251"]\n',
            '"tests/**" = ["D", "S", "TID251"]\n"plugins/*/tests/**" = ["D", "S", "TID251"]\n"conftest.py" = ["D"]\n',
        ),
        ('testpaths = ["tests"]', 'testpaths = ["tests", "plugins"]'),
        (
            "ignore_missing_imports = true",
            'mypy_path = "plugins/adapters:plugins/data:plugins/desktops:plugins/phones:plugins/recipes"\nignore_missing_imports = true',
        ),
    )


def images() -> None:
    """Install the plug-ins with the project, in environments and images."""
    sub(
        "deploy/local/setup.sh",
        (
            """requirements=requirements/${2:-$1}.txt
    if is_current "$folder" "$requirements" pyproject.toml; then return; fi""",
            """requirements=requirements/${2:-$1}.txt project projects=()
    if is_current "$folder" "$requirements" pyproject.toml plugins/*/pyproject.toml; then return; fi""",
        ),
        (
            """    # The project itself, from its sources: setuptools is among the pinned, so that nothing else is fetched.
""",
            """    # The project and its plug-ins, from their sources: setuptools is among the pinned, so that nothing else is fetched.
    for project in . plugins/*; do projects+=(--editable "$project"); done
""",
        ),
        (
            "--config-settings editable_mode=compat --editable .\n",
            '--config-settings editable_mode=compat "${projects[@]}"\n',
        ),
    )
    for image in ("streams", "model"):
        sub(
            f"deploy/docker/{image}.Dockerfile",
            (
                "COPY trainer trainer\nRUN uv build --wheel --offline --no-build-isolation --python /opt/venv/bin/python --out-dir /wheel\n",
                """COPY trainer trainer
COPY plugins plugins
RUN for project in . plugins/*; do \\
        uv build --wheel --offline --no-build-isolation --python /opt/venv/bin/python --out-dir /wheel "$project" || exit 1; \\
    done
""",
            ),
        )
    sub(".dockerignore", ("!trainer\n", "!trainer\n!plugins\nplugins/*/tests\n"))
    sub(
        "deploy/docker/dev.yml",
        (
            "    - ./trainer:/app/source/trainer:ro\n",
            "    - ./trainer:/app/source/trainer:ro\n"
            + "".join(f"    - ./plugins/{n}/dart_{n}:/app/source/dart_{n}:ro\n" for n in sorted(GROUPS)),
        ),
    )
    sub("tests/compose/test_stack.py", ('"trainer", "tests"', '"trainer", "plugins", "tests"'))
    sub(
        "tests/unit/deploy/test_setup.py",
        (
            """    (tmp_path / "requirements").mkdir()
    for name in ("requirements/model.txt", "requirements/model-gpu.txt", "pyproject.toml"):
""",
            """    for name in ("requirements/model.txt", "requirements/model-gpu.txt", "pyproject.toml", "plugins/x/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
""",
        ),
    )


def targets() -> None:
    """Name what moved in the targets of make."""
    [left_out] = re.findall(r"addprefix --ignore=tests/,([\w/ ]+)\)", Path("Makefile").read_text())
    sub(
        "Makefile",
        (
            "pytest -q -n 2 --dist worksteal tests/unit\n",
            "pytest -q -n 2 --dist worksteal tests/unit plugins/recipes/tests\n",
        ),
        ("--durations 10 tests/unit >$$output", "--durations 10 tests/unit plugins/recipes/tests >$$output"),
        (left_out, re.sub(r" (desktops|osworld|adapters|phone)\b", "", left_out)),
        ("-m pytest -q tests/data\n", "-m pytest -q tests/data plugins/data/tests\n"),
        (f"--durations 20 {T}\n", f"--durations 20 {T} --ignore={T}/osworld\n"),
        ("-m pytest -q plugins/phones/tests/phones\n", "-m pytest -q plugins/phones/tests\n"),
        ("-m pytest -q plugins/adapters/tests plugins/adapters/tests/unit\n", "-m pytest -q plugins/adapters/tests\n"),
        (
            "mypy topics dart_streams workers benchmarks examples --exclude",
            "mypy topics dart_streams workers plugins/*/dart_* benchmarks examples --exclude",
        ),
    )


def lanes() -> None:
    """Let each lane cover its plug-in as a whole."""
    text = Path("tests/lanes.py").read_text()
    text = re.sub(r"^DESKTOPS = .*\n", 'DESKTOPS = "plugins/desktops/"\n', text, flags=re.M)
    text = text.replace('"plugins/data/dart_data/tracker/"', '"plugins/data/"')
    text = text.replace('("plugins/adapters/tests/", "plugins/adapters/dart_adapters/")', '("plugins/adapters/",)')
    text = text.replace('("plugins/phones/tests/phones/", "plugins/phones/dart_phones/", ', '("plugins/phones/", ')
    text = text.replace("(*DESKTOPS, ", "(DESKTOPS, ")
    text = text.replace(f'("{T}/osworld/", "{D}/osworld/", *DESKTOPS, ', "(DESKTOPS, ")
    text = text.replace('"plugins/recipes/dart_recipes/"', '"plugins/recipes/"')
    assert "*DESKTOPS" not in text and "dart_" not in text.replace("dart_streams", ""), text
    Path("tests/lanes.py").write_text(text)
    text = Path("CONTRIBUTING.md").read_text()
    for old, new in (
        ("`plugins/data/dart_data/tracker/`", "`plugins/data/`"),
        ("`plugins/adapters/tests/`, `plugins/adapters/dart_adapters/`", "`plugins/adapters/`"),
        ("`plugins/phones/tests/phones/`, `plugins/phones/dart_phones/`", "`plugins/phones/`"),
        (f"`{T}/`, `{D}/desktop/`, `{D}/server/`, `workers/env", "`plugins/desktops/`, `workers/env"),
        (f"`{T}/osworld/`, `{D}/osworld/`, `{T}/`, `{D}/desktop/`, `{D}/server/`, ", "`plugins/desktops/`, "),
        ("`plugins/recipes/dart_recipes/`", "`plugins/recipes/`"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    Path("CONTRIBUTING.md").write_text(text)
    sub(
        "tests/unit/test_lanes.py",
        (
            f'    assert targets("{D}/osworld/pages.py") == {{"test-osworld"}}\n',
            '    assert targets("plugins/recipes/pyproject.toml") == {"test-models"}\n',
        ),
    )
    seconds = json.loads(Path("tests/durations.json").read_text())
    Path("tests/durations.json").write_text(
        json.dumps(dict(sorted((moved_file(k), v) for k, v in seconds.items())), indent=1) + "\n"
    )


def moved_tests() -> None:
    """Correct what moved tests say of places."""
    for name in git("ls-files", "plugins/*/tests/*").splitlines():
        path = Path(name)
        if path.suffix != ".py":
            continue
        text = before = path.read_text()
        depth = len(path.parts) - 1
        text = re.sub(r"(Path\(__file__\)(?:\.resolve\(\))?\.parents)\[[2-9]\]", rf"\1[{depth}]", text)
        text = text.replace("PROGRAM.parents[2]", f"PROGRAM.parents[{depth}]")
        text = text.replace(
            'Path(__file__).parents[1] / "golden"', f'Path(__file__).parents[{depth}] / "tests/unit/golden"'
        )
        if text != before:
            path.write_text(text)
    sub(
        f"{T}/unit/test_osworld_command.py",
        ("from dart_streams.console.cli import osworld\n", "from dart_desktops import command as osworld\n"),
    )
    for name in git("ls-files", "plugins/*.py").splitlines():
        path = Path(name)
        text = path.read_text()
        if "from tests import osworld_needs" in text:
            path.write_text(
                text.replace("from tests import osworld_needs", "from plugins.desktops.tests import osworld_needs")
            )


def programs() -> None:
    """Correct what runs without the project being installed, and the pages of recipes."""
    # Programs of .venv/osworld have no installed plug-in.
    sub(
        f"{T}/osworld/desktop_env_program.py",
        ("sys.path.insert(0, str(ROOT))\n", 'sys.path[:0] = [str(ROOT), str(ROOT / "plugins/desktops")]\n'),
    )
    sub(f"{T}/osworld/agent_side.py", ("parents[4]", "parents[2]"))
    sub(
        f"{D}/osworld/sidecar.py",
        (
            'for name in ("workers", "workers.env", "dart_desktops.osworld"):',
            'for name in ("dart_desktops", "dart_desktops.osworld"):',
        ),
    )
    for name in git("ls-files", "plugins/recipes/dart_recipes/*/README.md").splitlines():
        path = Path(name)
        path.write_text(path.read_text().replace("](../../../docs/", "](../../../../docs/"))
    sub("docs/hooks.py", ('"](../../../docs/"', '"](../../../../docs/"'))
    sub(
        "docs/recipes/your-own.md",
        ("Add its entry point to `pyproject.toml`", "Add its entry point to `plugins/recipes/pyproject.toml`"),
    )
    sub(
        "benchmarks/mutants/__main__.py",
        ('"PYTHONPATH": str(tree)}', '"PYTHONPATH": os.pathsep.join(map(str, (tree, *tree.glob("plugins/*"))))}'),
    )


def docs() -> None:
    """Correct the pages that list folders."""
    text = Path("docs/development.md").read_text()
    rows = text.splitlines(keepends=True)
    kept = [
        row
        for row in rows
        if not row.startswith(
            ("| `plugins/data/dart_data/tracker/`", f"| `{D}/server/`", "| `plugins/recipes/dart_recipes/`")
        )
    ]
    assert len(rows) - len(kept) == 3
    place = next(i for i, row in enumerate(kept) if row.startswith("| `benchmarks/` |"))
    kept[place:place] = [
        "| `plugins/` | what a run of web pages does not need, a distribution each: `pyproject.toml`, a package, tests, a page | imports by the core: an entry point names each |\n",
        "| `plugins/recipes/` | `dart_recipes`, methods of other papers, a folder each: settings, rules, a page | imports of another recipe |\n",
        "| `plugins/desktops/` | `dart_desktops`: `desktop/` and `osworld/` are backends, `server/` leases desktops to remote clients | Kafka and the store in the server |\n",
        "| `plugins/phones/`, `plugins/adapters/` | `dart_phones`, `dart_adapters`: Android's views, and environments of other projects | code of those projects |\n",
        "| `plugins/data/` | `dart_data`: the process that copies metrics and samples to a tracker; a module for each tool in `tracker/backends/`, with libraries of `.venv/data` | decisions; any dependency of the circle |\n",
    ]
    text = "".join(kept)
    old = "| `workers/env/backends/` | the environments of the project, a folder each |"
    assert old in text
    text = text.replace(
        old,
        "| `workers/env/backends/` | the environments of the core: web pages, a simulated one, and tools of MCP servers |",
    )
    old = "So are the image tags in `deploy/k8s`."
    assert old in text
    text = text.replace(old, "So are `plugins/*/pyproject.toml` and the image tags in `deploy/k8s`.")
    Path("docs/development.md").write_text(text)
    sub(
        "docs/pictures/draw.py",
        (
            '        ("plain", "dart_streams/console · recipes", "runs, views, launch, cli; methods of other papers"),\n',
            '        ("plain", "plugins", "desktops, phones, adapters, recipes, data: entry points"),\n        ("plain", "dart_streams/console", "runs, views, launch, the command line"),\n',
        ),
    )
    sub(
        "README.md",
        ("  recipes/         training methods of other papers, chosen by name\n", ""),
        (
            "workers/           env worker, rollout worker, recorder, curator, tracker, desktop server\n",
            "workers/           env worker, rollout worker, recorder, curator\n",
        ),
        (
            "benchmarks/        measurements",
            "plugins/           desktops, phones, adapters, recipes of other papers, trackers\nbenchmarks/        measurements",
        ),
    )
    text = Path("docs/testing.md").read_text()
    text = text.replace("| `make unit` | `tests/unit`:", "| `make unit` | `tests/unit` and `plugins/recipes/tests`:")
    for old, new in (
        (
            f"| `tests/data`, `{T}/osworld`, `plugins/adapters/tests` |",
            f"| `tests/data`, `plugins/data/tests`, `{T}/osworld`, `plugins/adapters/tests` |",
        ),
        (
            "| `plugins/phones/tests/phones` |",
            "| `plugins/recipes/tests`, `plugins/*/tests/unit` | units of plug-ins, as `tests/unit`; but for those of recipes they run in the lanes of their plug-in |\n| `plugins/phones/tests/phones` |",
        ),
    ):
        assert old in text, old
        text = text.replace(old, new)
    Path("docs/testing.md").write_text(text)
    sub("docs/osworld.md", (" (`plugins/desktops/tests/osworld`)", ""))
    sub("tests/integration/conftest.py", ("tests.conftest.GUARDED", "conftest.GUARDED"))
    sub(
        "docs/how-to/containers.md",
        (
            "Images install the wheel over pinned requirements, as a user would.",
            "Images install the wheels of the project and its plug-ins over pinned requirements, as a user would.",
        ),
        ("A changed source file builds the wheel again", "A changed source file builds the wheels again"),
    )


def floors() -> None:
    """Correct the floors of imports, and write which folders the tests read."""
    Path("tests/sources.py").write_text('''"""Where the project's sources are, for tests that read them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ("topics", "dart_streams", "workers", "trainer")
PLUGINS = tuple(sorted(str(file.parent.relative_to(ROOT)) for file in ROOT.glob("plugins/*/dart_*/__init__.py")))
PRODUCT = (*CORE, *PLUGINS)
TESTS = ("tests", *(f"{Path(folder).parent}/tests" for folder in PLUGINS))
''')
    sub(
        "tests/unit/test_imports.py",
        ('PLUGIN_MODULES = ("dart_desktops.command", "dart_desktops.checks")\n', ""),
        (
            """    ("dart_recipes", "dart_data.tracker", "dart_desktops.desktop"),
    ("dart_desktops.osworld", "dart_phones"),
    ("dart_adapters", "dart_desktops.server", *PLUGIN_MODULES),
""",
            """    ("dart_recipes", "dart_data", "dart_desktops"),
    ("dart_phones",),
    ("dart_adapters",),
""",
        ),
        (
            '"workers.curator", "dart_data.tracker"),\n        ("workers.env.backends",),\n        ("dart_desktops.server", "workers.env.main"),\n',
            '"workers.curator"),\n        ("workers.env.backends",),\n        ("workers.env.main",),\n',
        ),
        (
            """    "dart_streams.console": (
        ("dart_streams.console.runs",),""",
            """    "dart_desktops": (
        ("dart_desktops.desktop",),
        ("dart_desktops.osworld",),
        ("dart_desktops.server", "dart_desktops.command", "dart_desktops.checks"),
    ),
    "dart_streams.console": (
        ("dart_streams.console.runs",),""",
        ),
        (
            'OURS = ("benchmarks", "dart_streams", "examples", "topics", "trainer", "workers")\n',
            'FOLDERS = ("benchmarks", "examples", *PRODUCT)\nOURS = tuple(Path(folder).name for folder in FOLDERS)\n',
        ),
        ("for name in OURS for path in (ROOT / name)", "for name in FOLDERS for path in (ROOT / name)"),
        (
            """    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")
""",
            """    parts = file.with_suffix("").parts
    return ".".join(parts[2:] if parts[0] == "plugins" else parts).removesuffix(".__init__")
""",
        ),
        (
            """    own = folder.strip("/").replace("/", ".")
""",
            """    own = module_of(Path(folder))
""",
        ),
        ('if name.startswith("workers")), file', 'if name.startswith("dart_")), file'),
        ('"uno", "workers"}', '"uno", "dart_desktops"}'),
        ('"tldextract", "workers"}', '"tldextract", "dart_desktops"}'),
        (
            """@pytest.mark.skipif(is_installed("torch"), reason="some plug-ins need libraries of the streams")
@pytest.mark.parametrize("group", ["checks", "commands", "environments"])
def test_every_entry_point_of_the_plug_ins_can_be_loaded(group: str):
    assert len([entry.load() for entry in entry_points(group=f"dart_streams.{group}")]) >= 3


""",
            "",
        ),
        ("from importlib.metadata import entry_points\n", ""),
    )


def sizes() -> None:
    """Count the core without a list of plug-ins."""
    text = Path("tests/unit/test_sizes.py").read_text()
    begin, end = text.index("PLUGINS = ("), text.index("PRODUCT_LINES")
    text = text[:begin] + text[end:]
    text = text.replace('"""Without :data:`PLUGINS`. Lines are', '"""Without plug-ins. Lines are')
    text = text.replace("import PRODUCT, ROOT\n", "import CORE, PRODUCT, ROOT, TESTS\n")
    begin, end = text.index("    plugins, product = "), text.index("def test_the_core_gets_no_more_keys")
    text = (
        text[:begin]
        + """    assert lines(python_files(*PRODUCT)) <= PRODUCT_LINES
    assert lines(python_files(*CORE)) <= CORE_LINES
    assert lines(iter([ROOT / "conftest.py", *python_files(*TESTS)])) <= TEST_LINES


"""
        + text[end:]
    )
    text = re.sub(r"(?<=^PRODUCT_LINES = )[\d_]+", lambda one: f"{int(one[0]) - 1:_}", text, flags=re.MULTILINE)
    text = re.sub(r'(?<="dart_streams/console/cli": )\d+', lambda one: str(int(one[0]) - 2), text)
    Path("tests/unit/test_sizes.py").write_text(text)


def names() -> None:
    """Correct tests that read the names of all sources."""
    sub(
        "tests/unit/test_function_names.py",
        (
            f'OTHERS_NAMES = {{f"{D}/desktop/guest/{{name}}.py" for name in ("pyautogui", "pyautogui_further")}}\nOTHERS_NAMES |= {{"workers/curator/agents.py"}}\n',
            f'GUEST = "{D}/desktop/guest/pyautogui"\nOTHERS_NAMES = {{f"{{GUEST}}.py", f"{{GUEST}}_further.py", "workers/curator/agents.py"}}\n',
        ),
        (
            """(ROOT / "pyproject.toml").read_text()))
""",
            """"".join(map(Path.read_text, PROJECTS))))
""",
        ),
        (
            "ENTRY_POINTS = frozenset",
            'PROJECTS = (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))\nENTRY_POINTS = frozenset',
        ),
    )


def readers() -> None:
    """Correct tests of pages and of recipes."""
    sub(
        "tests/unit/docs/test_glossary.py",
        (
            'for file in sorted((ROOT / "tests").rglob("*.py"))\n        for node',
            'for folder in TESTS\n        for file in sorted((ROOT / folder).rglob("*.py"))\n        for node',
        ),
    )
    sub("tests/unit/docs/test_glossary.py", ("import PRODUCT, ROOT\n", "import PRODUCT, ROOT, TESTS\n"))
    sub(
        "tests/unit/console/views/test_console.py",
        (
            'files = [*(ROOT / "dart_streams").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]',
            'files = [file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")]',
        ),
    )
    sub(
        "tests/unit/console/views/test_console.py",
        ("from tests.sources import ROOT\n", "from tests.sources import PRODUCT, ROOT\n"),
    )
    sub(
        "plugins/recipes/tests/test_every_recipe.py",
        (
            """    others = [
        path for name in ("dart_streams", "workers", "trainer", "benchmarks") for path in (ROOT / name).rglob("*.py")
    ]
    recipe = re.compile(r"dart_streams\\.recipes\\.\\w+")
    assert [path for path in others if "recipes" not in path.parts and recipe.search(path.read_text())] == []
""",
            """    others = [path for name in (*PACKAGES, "benchmarks") for path in (ROOT / name).rglob("*.py")]
    assert [path for path in others if re.search(r"dart_recipes\\.\\w+", path.read_text())] == []
""",
        ),
        (
            "from tests.sources import ROOT\n",
            "from tests.sources import CORE as PACKAGES\nfrom tests.sources import ROOT\n",
        ),
    )
    site = """    *sorted((ROOT / "plugins/recipes/dart_recipes").glob("*/README.md")),
"""
    for file in ("tests/unit/docs/test_site.py", "tests/unit/docs/test_sentences.py"):
        sub(file, (site, site + '    *sorted(ROOT.glob("plugins/*/README.md")),\n'))
    sub(
        "tests/unit/docs/test_site.py",
        ('r"(?:topics|dart_streams|workers|trainer|tests|', 'r"(?:topics|dart_streams|workers|trainer|plugins|tests|'),
        (
            """        if package.relative_to(ROOT).parts[:2] not in {("workers", "env"), ("dart_streams", "recipes")}:
""",
            """        if package.relative_to(ROOT).parts[:2] != ("workers", "env"):
""",
        ),
        (
            """    for package in [path.parent for name in OURS for path in (ROOT / name).rglob("__init__.py")]:
""",
            """    packages = [path.parent for name in OURS for path in (ROOT / name).rglob("__init__.py")]
    for package in [*packages, *(ROOT / name for name in PLUGINS)]:
""",
        ),
        ("from tests.sources import ROOT\n", "from tests.sources import PLUGINS, ROOT\n"),
    )


def wheels() -> None:
    """Build a wheel for the project and for each plug-in."""
    sub(
        "tests/installed_wheel.py",
        (
            '"""The project\'s wheel in an environment of its own, as an image has it: without the checkout."""',
            '"""The wheels of the project and its plug-ins in an environment of its own, as an image has it: without the checkout."""',
        ),
        ('"workers", "trainer")\n', '"workers", "trainer", "plugins")\n'),
        (
            '''def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, with the setuptools of this environment."""
''',
            '''def build_wheels(folder: Path) -> list[Path]:
    """Build the wheels from a copy of the sources, with the setuptools of this environment; the project's is first."""
''',
        ),
        (
            'shutil.ignore_patterns("__pycache__")',
            'shutil.ignore_patterns("__pycache__", "tests", "*.egg-info", "build")',
        ),
        (
            """    uv("build", "--wheel", "--offline", "--no-build-isolation", "--python", sys.executable, "-o", folder, source)
    [wheel] = folder.glob("*.whl")
    return wheel
""",
            """    for project in (source, *sorted(source.glob("plugins/*"))):
        uv("build", "--wheel", "--offline", "--no-build-isolation", "--python", sys.executable, "-o", folder, project)
    return sorted(folder.glob("*.whl"), key=lambda wheel: not wheel.name.startswith("dart_streams"))
""",
        ),
        (
            '''def install_wheel(wheel: Path, folder: Path) -> Path:
    """Install the wheel beside this environment's pinned packages, without its editable install; return the Python."""
''',
            '''def install_wheels(wheels: list[Path], folder: Path) -> Path:
    """Install wheels beside this environment's pinned packages, without its editable ones; return the Python."""
''',
        ),
        ('startswith(("dart_streams", "__editable__"', 'startswith(("dart_", "__editable__"'),
        ('"--python", folder / "bin/python", wheel)', '"--python", folder / "bin/python", *wheels)'),
    )
    sub(
        "tests/model/test_wheel.py",
        ("import build_wheel, failed_verbs, install_wheel\n", "import build_wheels, failed_verbs, install_wheels\n"),
        ("install_wheel(build_wheel(tmp_path)", "install_wheels(build_wheels(tmp_path)"),
    )
    sub(
        "tests/unit/deploy/test_wheel.py",
        (
            "import BUILT_FROM, ROOT, build_wheel, failed_verbs, install_wheel\n",
            "import BUILT_FROM, build_wheels, failed_verbs, install_wheels\nfrom tests.sources import PRODUCT, ROOT\n",
        ),
        ("PACKAGES = [name for name in BUILT_FROM if (ROOT / name).is_dir()]\n", ""),
        ("PACKAGES", "PRODUCT"),
        (
            """def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))
""",
            """def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_wheels(tmp_path_factory.mktemp("wheel"))
""",
        ),
        (
            "def test_the_wheel_has_every_file_of_the_packages(wheel: Path):",
            "def test_the_wheels_have_every_file_of_the_packages(wheels: list[Path]):",
        ),
        ("path.relative_to(ROOT).as_posix()\n", "path.relative_to((ROOT / name).parent).as_posix()\n"),
        (
            "    assert ours - set(zipfile.ZipFile(wheel).namelist()) == set()\n",
            "    assert ours - {name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()} == set()\n",
        ),
        (
            """def python(wheel: Path) -> Path:
    return install_wheel(wheel, wheel.parent / "venv")
""",
            """def python(wheels: list[Path]) -> Path:
    return install_wheels(wheels, wheels[0].parent / "venv")
""",
        ),
        (
            'f"./{name}:{mounted}/{name}:ro" for name in PRODUCT]',
            'f"./{name}:{mounted}/{Path(name).name}:ro" for name in PRODUCT]',
        ),
        (
            "        (tmp_path / name).symlink_to(ROOT / name)\n",
            "        (tmp_path / Path(name).name).symlink_to(ROOT / name)\n",
        ),
        (
            """    source = tmp_path / "dart_streams"
    assert done.stdout.split() == [f"{source}/__init__.py", "dart_recipes.dart", f"{source}/recipes/dart"]
""",
            """    places = [f"{tmp_path}/dart_streams/__init__.py", "dart_recipes.dart", f"{tmp_path}/dart_recipes/dart"]
    assert done.stdout.split() == places
""",
        ),
        ("test_every_verb_starts_from_the_wheel_alone", "test_every_verb_starts_from_the_wheels_alone"),
    )
    sub(
        "tests/verbs.py",
        (
            "from collections.abc import Iterator\n",
            "from collections.abc import Iterator\nfrom importlib.metadata import entry_points\n",
        ),
        (
            """    failed = helps()
""",
            """    load_entries()
    failed = helps()
""",
        ),
        (
            "def started(",
            '''def load_entries() -> None:
    """Load what the entry points of the streams' side name."""
    for group in ("checks", "commands", "environments") if SIDE == "streams" else ():
        for entry in entry_points(group=f"dart_streams.{group}"):
            entry.load()


def started(''',
        ),
    )


def finish() -> None:
    """Install the plug-ins; remove what is left of folders; sort, format and generate."""
    left = """find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
        find dart_streams workers tests -type d -empty -delete"""
    python, ruff = ".venv/streams/bin/python", ".venv/streams/bin/ruff"
    for command in (
        ["deploy/local/setup.sh", "dev"],
        ["bash", "-ec", left],
        [ruff, "check", "-q", "--fix", "--exit-zero", "."],
        [ruff, "format", "-q", "."],
        [python, "docs/pictures/draw.py"],
        [python, "-m", "docs.reference"],
    ):
        subprocess.run(command, check=True)


def main() -> None:
    """Move, rename, edit and generate, all into the index."""
    assert not git("status", "--porcelain", "--untracked-files=no"), "the checkout has changes: commit them first"
    assert not Path("plugins").exists(), "plugins is there, of another run: remove it"
    move()
    rename()
    projects()
    git("add", "-A")
    for step in (settings, images, targets, lanes, moved_tests, programs, docs):
        step()
    for step in (floors, sizes, names, readers, wheels):
        step()
    git("add", "-A")
    finish()
    Path(__file__).unlink()
    git("add", "-A")


if __name__ == "__main__":
    main()
