"""The table of packages in docs/architecture.md names files that import each package, and leaves none of them out."""

import ast
import itertools
import re

import pytest

from tests.sources import ROOT

MODULES = {
    "kafka-python": "kafka",
    "aiokafka": "aiokafka",
    "faust-streaming": "faust",
    "torch": "torch",
    "vllm": "vllm",
    "transformers": "transformers",
    "cassandra-driver": "cassandra",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "msgspec": "msgspec",
    "safetensors": "safetensors",
    "fsspec": "fsspec",
}
"""The name by which each distribution is imported."""
ROW = re.compile(r"\| (\S+) \| [^|]+ \| (`[^|]+`) \|")


def rows() -> list[tuple[str, str]]:
    _, _, section = (ROOT / "docs/architecture.md").read_text().partition("## The packages\n")
    table = section.partition("\n## ")[0].splitlines()
    return [(row[1], file) for line in table if (row := ROW.fullmatch(line)) for file in re.findall("`(.+?)`", row[2])]


def imported(file: str) -> set[str]:
    """Return the dotted names that a file imports, each with those above it."""
    names = set[str]()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {above for name in names for above in itertools.accumulate(name.split("."), "{}.{}".format)}


def test_the_table_has_each_package():
    assert {package for package, _ in rows()} == MODULES.keys()


@pytest.mark.parametrize(("package", "file"), rows())
def test_each_named_file_imports_its_package(package: str, file: str):
    assert MODULES[package] in imported(file)
