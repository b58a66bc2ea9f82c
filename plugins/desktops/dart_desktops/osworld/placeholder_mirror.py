"""Fills a mirror with placeholders (``placeholders``) for missing files."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import structlog

from dart_desktops.osworld import sidecar, steps
from dart_desktops.osworld.mirror import EMPTY_HISTORY, FileDigest, Mirror, hash_file, mirror_path, needed_urls
from dart_desktops.osworld.tasks import Check, OsworldTask
from dart_streams.config.text import lines_of
from dart_streams.errors import ServiceUnavailable

WRITE_S = 1200.0
HOME = PurePosixPath("/home/user")
"""Folder of relative paths on the machine."""
ARCHIVES = frozenset({".zip", ".gz", ".xz"})
UNPACKED_TO = re.compile(r"\s-[dC]\s+(\S+)")
PLACE = re.compile(r"/home/user/[^\s\"';&|>]+")
ASPECTS = {
    "compare_docx_tables": "table",
    "compare_docx_images": "picture",
    "compare_references": "references",
    "check_direct_json_object": "json",
}
"""Part of a document that a metric compares, beside the text."""
RULE_ASPECTS = {"chart": "chart", "pivot_table": "pivot_table", "sheet_fuzzy": "names", "sheet_name": "sheets"}
"""Part of a workbook that a rule of ``compare_table`` compares, beside the cells of the first sheet."""

log = structlog.get_logger()


class MissingFile(msgspec.Struct, kw_only=True):
    """Everything that tasks say of a missing file, for the program that writes it."""

    path: str
    kind: str
    finished: bool
    aspects: list[str] = []
    members: list[str] = []


def fill(mirror: Mirror, tasks: Sequence[OsworldTask], environment: Path = sidecar.ENVIRONMENT) -> int:
    """Write placeholders for the tasks' missing files of known types; return their number.

    Each is recorded as made, which distinguishes scores with placeholders from those of OSWorld. Raises
    ServiceUnavailable without the evaluators' environment.
    """
    if not (environment / "bin" / "python").exists():
        raise ServiceUnavailable(f"substitutes are written in {environment}: run `make osworld`")
    missing = missing_files(mirror, tasks)
    boot = sidecar.BOOT.format("placeholders.writer")
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-I", "-c", boot, str(sidecar.FOLDER)],
        input="\n".join(msgspec.json.encode(file).decode() for file in missing),
        capture_output=True,
        text=True,
        check=False,
        timeout=WRITE_S,
    )
    if done.returncode != 0:
        raise ServiceUnavailable(f"substitutes cannot be written: {done.stderr[-500:]}")
    answers = [json.loads(line) for line in lines_of(done.stdout) if line]
    for answer in answers:
        if "broken" in answer:
            log.warning("a placeholder cannot be written", path=answer["path"], reason=answer["broken"])
    made = [Path(answer["path"]) for answer in answers if answer["made"]]
    digests = mirror.recorded()
    for path in made:
        place = str(path.relative_to(mirror.folder))
        digests[place] = FileDigest(hash_file(path), path.stat().st_size, made=True)
    mirror.record(digests)
    return len(made)


def missing_files(mirror: Mirror, tasks: Sequence[OsworldTask]) -> list[MissingFile]:
    """Return the tasks' missing files; one that any task starts from is not finished."""
    found: dict[str, MissingFile] = {}
    for task in tasks:
        aspects = list(compared_aspects(task))
        starting = {*steps.urls_of(task.config), EMPTY_HISTORY}
        for url in needed_urls(task):
            if mirror.find(url) is not None:
                continue
            path = str(mirror.folder / mirror_path(url))
            file = found.setdefault(url, MissingFile(path=path, kind=kind_of(task, url), finished=True))
            file.finished = file.finished and url not in starting
            file.aspects += aspects
            file.members += archive_members(task, url)
    return list(found.values())


def kind_of(task: OsworldTask, url: str) -> str:
    """Return a file's suffix, from its name on the machine or in the cache if the URL's is of no known type."""
    named = PurePosixPath(mirror_path(url)).suffix.lower()
    placed = [*(file.path for file in downloaded_files(task) if file.url == url)]
    placed += [name for address, name in task.cloud_files() if address == url]
    kinds = [PurePosixPath(path).suffix.lower() for path in placed]
    return next((kind for kind in kinds if kind and named in {"", ".data", ".file", ".bin"}), named)


def downloaded_files(task: OsworldTask) -> Iterator[steps.DownloadedFile]:
    """Yield the files that a task's steps copy to the machine."""
    for step in task.steps():
        if isinstance(step, steps.Download):
            yield from step.files


def compared_aspects(task: OsworldTask) -> Iterator[str]:
    """Yield the parts of documents that a task's metrics compare, beside their text."""
    options = task.evaluator.source.get("options") or {}
    for number, check in enumerate(task.evaluator.checks):
        if check.metric in ASPECTS:
            yield ASPECTS[check.metric]
        yield from (RULE_ASPECTS[kind] for kind in rule_kinds(check, options, number) if kind in RULE_ASPECTS)


def rule_kinds(check: Check, options: Any, number: int) -> Iterator[str]:
    """Yield the types of the rules of a check of workbooks."""
    own = options[number] if isinstance(options, list) and number < len(options) else options
    if check.metric == "compare_table" and isinstance(own, dict):
        yield from (str(rule.get("type")) for rule in own.get("rules", ()) if isinstance(rule, dict))


def archive_members(task: OsworldTask, url: str) -> list[str]:
    """Return the paths that a task's first steps name in the folder to which they unpack an archive."""
    placed = [file.path for file in downloaded_files(task) if file.url == url]
    if not placed or PurePosixPath(placed[0]).suffix not in ARCHIVES:
        return []
    commands = [step.command for step in task.config if isinstance(step, steps.Launch | steps.ExecuteCommand)]
    texts = [command if isinstance(command, str) else " ".join(command) for command in commands]
    unpacked = [match[1] for text in texts if placed[0] in text and (match := UNPACKED_TO.search(text))]
    if not unpacked:
        return []
    folder = HOME / unpacked[0]
    named = {path for text in texts for path in PLACE.findall(text)}
    named |= {step.path for step in task.config if isinstance(step, steps.OpenFile)}
    given = {file.path for file in downloaded_files(task)}
    inside = (PurePosixPath(path) for path in sorted(named - given))
    return [str(path.relative_to(folder)) for path in inside if path.is_relative_to(folder) and path != folder]
