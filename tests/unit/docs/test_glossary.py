"""One name a thing: what the glossary names exists, no class name is defined twice, and private words stay out."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

from tests.sources import PRODUCT, ROOT, TESTS

FILES = sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py"))
BESIDE = ("benchmarks", "examples", "tests")
"""What is held to the words of the glossary as well."""
PAGES = sorted(
    path
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "docker-compose.yml")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.toml"),
        *(ROOT / "deploy").rglob("*.sh"),
    )
    if path.name != "glossary.md" and not path.is_relative_to(ROOT / "docs/lab")
)
"""Texts for readers; the glossary names the words that are not used, and the lab book is as it was written."""
DEFINED_TWICE = {"Settings": "each recipe has its own, found by this name"}
"""Class names that may stand for two things, each with the reason."""
OWNER = re.compile(r"`((?:topics|dart_streams|workers|trainer|console)(?:\.\w+)*)` \|$")
PRIVATE = re.compile(
    r"\b(told|tells|telling|heard|hears|knock\w*|so[ ]many|lets in|let in|leash\w*|clerks?|scribes?|desks?)\b",
    re.IGNORECASE,
)
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def owners() -> list[str]:
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    return [match[1] for line in lines if (match := OWNER.search(line))]


def exists(name: str) -> bool:
    """Say whether a dotted name is a package, a module, or defined at the top of one."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module, _, attribute = name.rpartition(".")
    file = (ROOT / module.replace(".", "/")).with_suffix(".py")
    return file.is_file() and attribute in top_level(file)


def top_level(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_glossary_has_an_owner_in_each_row_and_unknown_names_are_found():
    text = (ROOT / "docs/glossary.md").read_text().partition("## Words not used")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| term ")]
    assert len(owners()) == len(rows) > 50
    assert not exists("topics.transitions.Nothing")
    assert not exists("dart_streams.nothing")


@pytest.mark.parametrize("name", sorted(set(owners())))
def test_what_the_glossary_names_exists(name: str):
    assert exists(name)


def test_no_class_name_is_defined_twice():
    places: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in DEFINED_TWICE}
    assert not twice
    assert all(len(places[name]) > 1 for name in DEFINED_TWICE), "no longer needed"


def prose(text: str) -> list[tuple[int, str]]:
    """Return comments, strings and names of a source with their lines; snake case and camel case as separate words."""
    found: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            found += [(token.start[0] + number, line) for number, line in enumerate(token.string.splitlines())]
        elif token.type == tokenize.NAME:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", token.string).replace("_", " ")
            found.append((token.start[0], words))
    return found


@pytest.mark.parametrize("package", [*PRODUCT, *BESIDE])
def test_private_words_stay_out_of_code(package: str):
    places = [
        f"{file.relative_to(ROOT)}:{line}: {match[0]}"
        for file in sorted((ROOT / package).rglob("*.py"))
        if file != Path(__file__)
        for line, text in prose(file.read_text())
        for match in PRIVATE.finditer(text)
    ]
    assert not places, "\n".join(["say it in the field's words (docs/glossary.md):", *places])


def test_private_words_stay_out_of_texts():
    assert len(PAGES) > 50
    places = [
        f"{page.relative_to(ROOT)}:{number}: {match[0]}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        for match in PRIVATE.finditer(line)
    ]
    assert not places, "\n".join(["say it in the field's words (docs/glossary.md):", *places])


def test_private_words_are_found_in_comments_docstrings_and_names():
    source = '"""It knocks."""\nclass DeskClerk: ...  # so many\nknock_at = 1\nfile.tell()\n'
    hits = [match[0] for _, text in prose(source) for match in PRIVATE.finditer(text)]
    assert hits == ["knocks", "Desk", "Clerk", "so many", "knock"]


@pytest.mark.parametrize("package", PRODUCT)
def test_logs_give_a_reason_under_the_one_key(package: str):
    places = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {keyword.arg}="
        for file in FILES
        if file.is_relative_to(ROOT / package)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS
        for keyword in node.keywords
        if keyword.arg in ("because", "why")
    ]
    assert not places


def test_names_of_tests_have_at_most_70_characters():
    names = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for folder in TESTS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > 70
    ]
    assert not names, "\n".join(["a name says one fact:", *names])
