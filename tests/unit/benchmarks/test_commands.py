"""The benchmarks' commands use what their modules have: they are imported when called, where no type checker looks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import commands

FILE = Path(commands.__file__)


def is_import(value: ast.expr) -> bool:
    """Say whether an expression is ``module(...)``, or a generator of that."""
    called = value.elt if isinstance(value, ast.GeneratorExp) else value
    return isinstance(called, ast.Call) and ast.unparse(called.func) == "module"


def imported(function: ast.FunctionDef) -> dict[str, str]:
    """Return the module of each variable that a command binds with ``module(...)``."""
    found = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        names = [item.id for target in node.targets for item in ast.walk(target) if isinstance(item, ast.Name)]
        bound = list(node.value.elts) if isinstance(node.value, ast.Tuple) else [node.value]
        if all(is_import(value) for value in bound):
            texts = [c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            found |= dict(zip(names, texts, strict=True))
    return found


def used(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield each module and the name that a command uses of it, also as ``module("x").name``."""
    modules = imported(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            value = node.value
            if isinstance(value, ast.Name) and value.id in modules:
                yield modules[value.id], node.attr
            elif isinstance(value, ast.Call) and ast.unparse(value.func) == "module":
                yield ast.literal_eval(value.args[0]), node.attr


def defined(module: str) -> set[str]:
    """Return the names of a module's own definitions, without importing it: some need torch."""
    names: set[str] = set()
    for node in ast.parse(FILE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


USES = sorted(
    {
        (function.name, *use)
        for function in ast.parse(FILE.read_text()).body
        if isinstance(function, ast.FunctionDef)
        for use in used(function)
    }
)


def test_the_uses_are_found():
    assert ("simulate", "decoupling", "SimulatedRun") in USES
    assert len({command for command, _, _ in USES}) > 8


@pytest.mark.parametrize(("command", "module", "name"), USES, ids=[" ".join(use) for use in USES])
def test_a_command_uses_what_its_module_has(command, module, name):
    assert name in defined(module), f"bench {command}: benchmarks/{module}.py has no {name}"
