"""Undoes mends chosen at random, one at a time in a worktree of its own, and prints which of them a test finds.

``python -m benchmarks.mutants --seed 7`` repeats a choice. A mend is found if its tests fail without it and pass with
it. Files are those of the last commit. The exit code is 1 if one is not found.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.private_services import ENVIRONMENT, private_services

ROOT = Path(__file__).parents[2]
MENDS = Path(__file__).with_name("mends.toml")
LIMIT_S = 600.0
"""Of the tests of a mend; beyond it they count as failed."""


class Replacement(msgspec.Struct, frozen=True):
    """A text of a file, and what it was before the mend."""

    file: str
    mended: str
    undone: str


class Mend(msgspec.Struct, frozen=True):
    """A mend, and the tests that fail without it, in the environment ``side``."""

    name: str
    tests: tuple[str, ...]
    replacements: tuple[Replacement, ...]
    side: str = "streams"
    services: bool = False


def read_mends(file: Path = MENDS) -> list[Mend]:
    """Return all mends that can be undone."""
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8"))["mend"], list[Mend])


def choose(mends: Sequence[Mend], number: int, seed: int) -> list[Mend]:
    """Return ``number`` of the mends, or all if there are fewer."""
    return random.Random(seed).sample(list(mends), min(number, len(mends)))


@contextmanager
def undo_mend(mend: Mend, root: Path) -> Iterator[None]:
    """Undo a mend in the files below ``root`` during a block; raise ValueError if a text is not there once."""
    before: dict[Path, str] = {}
    try:
        for part in mend.replacements:
            path = root / part.file
            text = path.read_text(encoding="utf-8")
            if (count := text.count(part.mended)) != 1:
                raise ValueError(f"{mend.name}: {part.file} has its text {count} times: change mends.toml too")
            before.setdefault(path, text)
            path.write_text(text.replace(part.mended, part.undone), encoding="utf-8")
        yield
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


@contextmanager
def make_worktree() -> Iterator[Path]:
    """A worktree of the last commit with the environments and jars of this checkout."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree], cwd=ROOT, check=True)
        try:
            for name in (".venv", ".dart"):
                if (ROOT / name).exists():
                    (tree / name).symlink_to(ROOT / name)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def run_tests(tree: Path, side: str, tests: Sequence[str]) -> tuple[int | None, str]:
    """Run tests up to the first that fails; return pytest's exit code, None beyond the limit, and its last lines."""
    command = [f"{ROOT}/.venv/{side}/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, *tree.glob("plugins/*"))))}
    try:
        done = subprocess.run(
            command, cwd=tree, env=variables, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"longer than {LIMIT_S:.0f} s"
    return done.returncode, "\n".join(done.stdout.splitlines()[-15:])


def try_mend(tree: Path, mend: Mend) -> dict[str, Any]:
    """Return whether the tests of a mend find that it is undone, and in how many seconds."""
    started = time.monotonic()
    with undo_mend(mend, tree):
        code, said = run_tests(tree, mend.side, mend.tests)
    found = {"mend": mend.name, "found": code in (1, None), "seconds": round(time.monotonic() - started, 1)}
    return found if found["found"] else {**found, "exit_code": code, "said": said}


def check_with_mends(tree: Path, mends: Sequence[Mend]) -> None:
    """Run all tests with the mends in place; raise ValueError if one fails."""
    by_side: defaultdict[str, set[str]] = defaultdict(set)
    for mend in mends:
        by_side[mend.side].update(mend.tests)
    for side, tests in by_side.items():
        code, said = run_tests(tree, side, sorted(tests))
        if code != 0:
            raise ValueError(f"a test fails with the mends in place, so it proves nothing:\n{said}")


@contextmanager
def services_for(mends: Sequence[Mend]) -> Iterator[None]:
    """Start a Kafka and a Cassandra during a block, if a mend needs them."""
    if not any(mend.services for mend in mends):
        yield
        return
    with private_services() as config:
        os.environ[ENVIRONMENT] = f"{config.bus.servers},{config.store.hosts[0]}:{config.store.port}"
        yield


def main(words: Sequence[str]) -> int:
    """Try the chosen mends, each printed to stderr when it is known; print all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=30, help="mends to undo, at random")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--only", help="mends whose name has this text")
    parser.add_argument("--side", choices=("streams", "model"), help="mends of one environment")
    given = parser.parse_args(words)
    known = [mend for mend in read_mends() if given.side in (None, mend.side) and (given.only or "") in mend.name]
    chosen = choose(known, given.number, given.seed)
    tried = []
    with make_worktree() as tree, services_for(chosen):
        check_with_mends(tree, chosen)
        for mend in chosen:
            tried.append(try_mend(tree, mend))
            print(json.dumps(tried[-1]), file=sys.stderr, flush=True)  # noqa: T201
    found = sum(result["found"] for result in tried)
    summary = {"seed": given.seed, "known": len(known), "undone": len(tried), "found": found, "mends": tried}
    print(json.dumps(summary, indent=1))  # noqa: T201
    return int(found < len(tried))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
