"""The table of metrics: it has what the trainer publishes, no more, and what every reader asks for."""

import ast
from collections.abc import Iterator

import pytest

from console.views.page import report_view
from docs.reference import metrics_page
from tests.sources import ROOT
from topics.training_metrics import ALL, BY_NAME, HEADLINES, OTHER, find
from trainer.data.samples import REASONS

MAKERS = {
    "trainer/learning/step.py": ("mean_metrics",),
    "trainer/learning/learner.py": ("learn", "_pass_cost", "_pretrain"),
    "trainer/learning/critic.py": ("fit",),
    "trainer/learning/imitation_term.py": ("metrics", "sft_metrics"),
    "trainer/reporting.py": ("step_metrics",),
    "trainer/version_writer.py": ("metrics",),
    "trainer/loop.py": ("_complete", "_replay_metrics"),
}
"""Functions that make metrics of a step; tests of whole trainers see those that are made elsewhere."""
LISTS = {"trainer/reporting.py": "SHOWN", "benchmarks/learning/play.py": "METRICS"}
"""Lists of metrics that readers show; their modules need torch or are slow to import."""
REPORT = "console/views/trainer_figures.py"
BEFORE = {"supervised"}
"""Metrics of old bundles that the report still reads; the trainer no longer publishes them."""
MOST_WORDS = 25


def nodes(file: str, functions: tuple[str, ...]) -> Iterator[ast.AST]:
    """Yield what is in the functions of these names."""
    named = [
        node
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in functions
    ]
    assert {node.name for node in named} == set(functions), f"{file}: no such function"
    for function in named:
        yield from ast.walk(function)


def text(node: ast.AST | None) -> str:
    """Return a literal, or the constant beginning of an f-string; nothing of anything else."""
    if isinstance(node, ast.JoinedStr):
        return text(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def published() -> set[str]:
    """Return the names that the trainer publishes; of a family what its names begin with."""
    names = set(REASONS)
    for file, functions in MAKERS.items():
        for node in nodes(file, functions):
            if isinstance(node, ast.Dict):
                names |= set(map(text, node.keys))
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                names.add(text(node.slice))
            elif isinstance(node, ast.DictComp):
                names.add(text(node.key))
    return names - {""}


def listed(file: str, name: str) -> set[str]:
    """Return the texts in the value of a module's constant."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    raise AssertionError(f"{file} has no {name}")


def reported() -> set[str]:
    """Return the names that the report reads from the trainer's rows."""
    names = set()
    for node in nodes(REPORT, ("trainer_fields", "computed_fields", "imitation_fields")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "metric_column":
            names.add(text(node.args[1]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            names.add(text(node.args[0]))
        elif isinstance(node, ast.comprehension) and isinstance(node.iter, ast.Tuple):
            names |= set(map(text, node.iter.elts))
    return names - {""}


def test_the_trainer_publishes_what_is_in_the_table_and_nothing_else():
    assert published() == {one.name.partition("/")[0] + "/" if "/" in one.name else one.name for one in ALL}


@pytest.mark.parametrize("file", LISTS)
def test_lists_of_metrics_have_only_names_of_the_table(file: str):
    names = listed(file, LISTS[file])
    assert names
    assert names <= BY_NAME.keys()


def test_the_report_reads_only_metrics_of_the_table():
    assert {"clip_share", "kl_reference", "checkpoint_ms"} <= reported()
    assert reported() - BEFORE <= BY_NAME.keys()
    assert set(report_view.LEARNING) | set(HEADLINES) <= BY_NAME.keys()


def test_a_name_is_unique_and_found_exactly_or_by_its_family():
    assert find("kl_reference") is BY_NAME["kl_reference"]
    assert find("reward") is BY_NAME["reward"]
    assert find("reward/miniwob/click-test") is BY_NAME["reward/PAGE"]
    assert find("staleness/3") is BY_NAME["staleness/N"]
    assert [find(name) for name in ("kl", "clip_fraction", "ratio_mean", "loss/3", "staleness")] == [None] * 5
    assert len(BY_NAME) == len(ALL)
    groups = [one.group for one in ALL]
    assert groups == sorted(groups, key=groups.index)
    assert OTHER not in groups


@pytest.mark.parametrize("metric", ALL, ids=lambda one: one.name)
def test_a_meaning_is_one_sentence(metric):
    assert metric.meaning.endswith(".")
    assert ". " not in metric.meaning
    assert len(metric.meaning.split()) <= MOST_WORDS


def test_the_page_of_metrics_is_that_of_the_table():
    assert (ROOT / "docs/metrics.md").read_text() == metrics_page(), "write it again: make reference"
