"""The documentation: links resolve, paths, keys and commands that it mentions exist, and the site builds."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from console.cli.main import COMMANDS
from docs.reference import iterate_keys
from tests.sources import PLUGINS, ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [
    *PAGES,
    *sorted((ROOT / "plugins/recipes/dart_recipes").glob("*/README.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
OURS = ("topics", "dart_streams", "workers", "trainer", "console", "benchmarks", "examples")
PATH = re.compile(rf"(?:{'|'.join(OURS)}|plugins|tests|deploy|docs|requirements)/[\w./-]*\w/?")
KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+")
COMMAND = re.compile(r"(?<![/\w-])(?<!-n )dart-streams (?:([a-z]+)(?: ([a-z]+(?:[-|][a-z]+)*))?)")
GROUPS = {"topics", "store", "dlq", "policy", "bench", "config"}
HISTORY = {ROOT / "CHANGELOG.md", *(DOCS / "lab").glob("*.md")}
"""Names that were, not those that are."""
GENERATED = {DOCS / "configuration.md", DOCS / "cli.md", DOCS / "metrics.md"}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them for headings of words."""
    headings = HEADING.findall(FENCE.sub("", path.read_text()))
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one).replace("`", "").strip().lower() for one in headings)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text)) for text in texts}


@pytest.mark.parametrize("page", TEXTS, ids=ids)
def test_relative_links_and_their_anchors_resolve_within_the_site(page: Path):
    for link in LINK.findall(CODE.sub("", FENCE.sub("", page.read_text()))):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{link}: no such file"
        assert page not in PAGES or file.is_relative_to(DOCS), f"{link}: outside of the site"
        if anchor:
            assert anchor in anchors(file), f"{link}: no such heading"


@pytest.mark.parametrize("page", [text for text in TEXTS if text not in HISTORY], ids=ids)
def test_paths_that_are_mentioned_exist(page: Path):
    for span in CODE.findall(FENCE.sub("", page.read_text())):
        text = span.strip("`")
        if (match := PATH.match(text)) and not re.search(r"[*<>{…]|[A-Z]{4,}", text):
            path, test = ROOT / match[0].rstrip("."), text.partition("::")[2]
            assert path.exists(), span
            assert not test or f"def {test}(" in path.read_text(), span


SECTIONS = {key.table.partition(".")[0] for key in iterate_keys()}
KEYS = {key.place for key in iterate_keys()} | {key.table for key in iterate_keys()}


@pytest.mark.parametrize("page", [text for text in TEXTS if text not in HISTORY | GENERATED], ids=ids)
def test_configuration_keys_that_are_mentioned_exist(page: Path):
    for span in CODE.findall(FENCE.sub("", page.read_text())):
        text = span.strip("`").partition(" =")[0]
        first, _, rest = text.partition(".")
        if KEY.fullmatch(text) and first in SECTIONS and not (ROOT / first / rest.partition(".")[0]).exists():
            owner = (ROOT / first / f"{rest.partition('.')[0]}.py").exists()
            assert owner or text in KEYS or Path(text).suffix in (".json", ".py", ".toml", ".md"), span


@pytest.mark.parametrize("page", [text for text in TEXTS if text not in HISTORY], ids=ids)
def test_commands_that_are_mentioned_exist(page: Path):
    names = {command.name for command in COMMANDS}
    for line in page.read_text().splitlines():
        if "`" not in line and not line.lstrip().startswith("dart-streams"):
            continue
        for verb, inner in COMMAND.findall(line):
            assert verb in names, f"{verb}: {line}"
            if verb in GROUPS and inner:
                sections = re.findall(rf"^##+ {verb} ([\w-]+)$", (DOCS / "cli.md").read_text(), re.MULTILINE)
                assert set(inner.split("|")) <= set(sections), line


def options_by_command() -> dict[str, set[str]]:
    """Return the options of each command, by its section of docs/cli.md."""
    sections = re.split(r"^##+ ", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)[1:]
    rows = {section.partition("\n")[0]: re.findall(r"^\| `([^`]+)`", section, re.MULTILINE) for section in sections}
    return {name: set(re.findall(r"--[\w-]+", " ".join(names))) | {"--help"} for name, names in rows.items()}


OPTIONS = options_by_command()


@pytest.mark.parametrize("page", [text for text in TEXTS if text not in HISTORY], ids=ids)
def test_options_that_are_mentioned_exist(page: Path):
    for words, rest in re.findall(r"(?<!-n )dart-streams ((?:[a-z]+(?:-[a-z]+)* ?)+)([^`|&#\n]*)", page.read_text()):
        names = [" ".join(words.split()[:number]) for number in (2, 1)]
        if command := next((name for name in names if name in OPTIONS), None):
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)) <= OPTIONS[command], f"{command} {rest}"


def test_every_page_is_in_the_navigation_and_of_the_lab_in_its_index():
    listed = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES}
    index = (DOCS / "lab/index.md").read_text()
    assert [page.name for page in (DOCS / "lab").glob("*.md") if f"({page.name}" not in index] == ["index.md"]


@pytest.mark.parametrize(("page", "most_kb"), [("performance.md", 12), ("reliability.md", 15), ("osworld.md", 10)])
def test_pages_of_present_figures_stay_short(page: str, most_kb: int):
    assert (DOCS / page).stat().st_size <= most_kb * 1000, "experiments go to docs/lab"


def test_the_site_loads_nothing_from_elsewhere():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["theme"]["font"] is False
    assert not any("//" in place for key in ("extra_css", "extra_javascript") for place in config.get(key, []))


def test_the_pictures_are_those_of_the_script(tmp_path: Path):
    copy = shutil.copy(DOCS / "pictures/draw.py", tmp_path)
    subprocess.run([sys.executable, copy], check=True)
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 5
    for picture in drawn:
        assert picture.read_text() == (DOCS / "pictures" / picture.name).read_text(), "python docs/pictures/draw.py"


def test_modules_of_the_reference_exist():
    named = re.findall(r"^::: ([\w.]+)$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE)
    assert len(named) > 20
    missing = [
        name for name in named if not any((ROOT / name.replace(".", "/")).with_suffix(s).exists() for s in ("", ".py"))
    ]
    assert not missing


def mkdocs() -> str | None:
    own = ROOT / ".venv/docs/bin/mkdocs"
    return str(own) if own.exists() else shutil.which("mkdocs")


@pytest.mark.skipif(mkdocs() is None, reason="no mkdocs in .venv/docs (make docs) or on PATH")
def test_the_site_builds_without_a_warning(tmp_path: Path):
    command = [str(mkdocs()), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site/api/curation.html").read_text()
    assert "rollouts_for" in page and "length_cap" in page, "the reference is made from docstrings"
    assert not re.search(r'<(script|link)[^>]+(src|href)="https?://(?!jcristharif)', page), "nothing from a CDN"


def test_where_things_go_names_every_package():
    text = (DOCS / "development.md").read_text() + (DOCS / "pictures/floors.svg").read_text()
    packages = [path.parent for name in OURS for path in (ROOT / name).rglob("__init__.py")]
    for package in [*packages, *(ROOT / name for name in PLUGINS)]:
        if package.relative_to(ROOT).parts[:2] != ("workers", "env"):
            assert package.name in text, package
