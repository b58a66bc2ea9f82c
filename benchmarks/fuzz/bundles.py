"""Bundles of others: whole files, directories, and contents around which a valid bundle is written."""

import contextlib
import inspect
import itertools
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from console.bundles import replay, restore, whatif
from console.bundles.bundle_inputs import TOKENS, config_of, tasks_of
from console.bundles.capture import TRACES
from console.launch.folder_catalog import describe_bundle
from console.lineage import traces
from console.lineage.lineage import Lineage
from console.runs import bundle as bundles
from console.runs.run_folder import folder_of
from console.views.explanations import Explanations
from console.views.page import export
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.views import PageViews
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.telemetry import names, spans

GOLDEN = Path(__file__).parents[2] / "tests/unit/golden"
BUNDLE = GOLDEN / "bundle.v1.dart"
MANIFEST = bundles.Manifest(run="golden", prefix="dart.golden.", captured_ms=0, schemas={})
SECTION, ITEM, FIELD = b"\x1e", b"\x1f", b"\x1d"
"""Begin a section (by its name), an item, and a further field of a record or blob, in a sample of contents."""
KINDS: dict[str, bundles.Kind] = {
    **dict.fromkeys(("config.toml", "tasks.toml", TOKENS), "text"),
    **{"blobs": "blobs", TRACES: "lines"},
}
"""Kinds of sections by name: those of files have lines, and all others records."""
TRAJECTORY, GROUP, TASK = "01980a6b-1c00-7c3e-9d51-3f2f5a1b2c3d", "g-17", "miniwob/click-test-2#17"
OTHER_NAMES = {
    **dict.fromkeys(("0190a1b2-0000-7000-8000-000000000001", "0190f3c2-7c5a-7000-8000-000000000001"), TRAJECTORY),
    **{"g000041": GROUP, '\\"step\\":2': '\\"step\\":0'},
}
"""Names in golden records that are made those of one trajectory, so that views and lineages join them."""
IDS = (TRAJECTORY, GROUP, TASK, "g-17-3-0", "12", "v12", f"{TRAJECTORY}/0", "observations[0]@0")


def bundle_samples() -> list[bytes]:
    """Return the golden bundles, the directory of one as JSON, and contents twice as often."""
    files = [file.read_bytes() for file in sorted(GOLDEN.glob("*.dart"))]
    contents = [recorded_contents(), golden_contents()]
    return [*files, directory_of(files[-1])[1], *contents, *contents, contents[1]]


def directory_of(content: bytes) -> tuple[bytes, bytes]:
    """Return the sections of a bundle, and its directory as JSON."""
    tail = len(bundles.MAGIC) + 4
    length = int.from_bytes(content[-tail : -tail + 4], "little")
    return content[: -tail - length - len(bundles.SKIPPABLE) - 4], content[-tail - length : -tail]


def with_directory(sections: bytes, directory: bytes) -> bytes:
    """Return a bundle of sections and a directory."""
    end = len(directory).to_bytes(4, "little") + bundles.MAGIC
    return sections + bundles.SKIPPABLE + (len(directory) + len(end)).to_bytes(4, "little") + directory + end


def section_of(name: str, items: Iterable[bytes]) -> bytes:
    """Return a section of a sample."""
    return SECTION + name.encode() + b"".join(ITEM + item for item in items)


def recorded_contents() -> bytes:
    """Return the contents of a golden bundle, whose replay reaches its end."""
    bundle = bundles.Bundle(BUNDLE)
    parts = [section_of(name, [bundle.text(name).encode()]) for name in ("config.toml", "tasks.toml")]
    for topic in bundle.topics():
        items = []
        for one in bundle.records(topic):
            place = f"[{one.partition},{one.offset},{one.at_ms}]".encode()
            headers = (part or b"" for name, value in one.headers for part in (name.encode(), value))
            items.append(FIELD.join([place, one.key or b"", one.value or b"", *headers]))
        parts.append(section_of(topic, items))
    return b"".join(parts)


def golden_contents() -> bytes:
    """Return contents with every section that a run can have, of the golden records."""
    bundle, records = bundles.Bundle(BUNDLE), dict[str, list[bytes]]()
    for file in sorted(GOLDEN.glob("*.json")):
        text = file.read_text(encoding="utf-8")
        for name, own in OTHER_NAMES.items():
            text = text.replace(name, own)
        record, items = json.loads(text), records.setdefault(file.name.partition(".v")[0], [])
        fields = (record["key"], record["value"], *itertools.chain(*record["headers"].items()))
        items.append(FIELD.join([f"[0,{len(items)},1795252453123]".encode(), *(one.encode() for one in fields)]))
    tasks = bundle.text("tasks.toml").replace('"simulated"', '"miniwob"').replace('"grid"', '"click-test-2"')
    further = {
        "config.toml": [bundle.text("config.toml").encode()],
        "tasks.toml": [tasks.encode()],
        TOKENS: [b'{"11":"QQ==","52":"w6k="}'],
        "blobs": [FIELD.join([b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", b"test"])],
        TRACES: [msgspec.json.encode(span) for span in golden_spans()],
        "file:journal.json": [b'{"phases":[{"name":"circle","started_ms":1795252450000,"ended_ms":1795252453123}]}'],
        "file:report.json": [b'{"episodes":4,"train_steps":12,"success_before":0.5,"success_after":1.0}\n'],
        "file:metrics/env-0.jsonl": [b'{"at_ms":1795252450000,"dart.env.steps":3}\n'],
    }
    return b"".join(section_of(name, items) for name, items in (further | records).items())


def golden_spans() -> Iterator[traces.RecordedSpan]:
    """Yield the spans of an optimizer step, its group and its trajectory, and of a step with its parts."""
    refs = (spans.train_step_span("golden", 12), spans.group_span("golden", GROUP), spans.trajectory_span(TRAJECTORY))
    named = [(f"{ref.trace_id:032x}", f"{ref.span_id:016x}") for ref in refs]
    kinds = (names.SPAN_TRAIN_STEP, names.SPAN_GROUP, names.SPAN_TRAJECTORY)
    for number, (kind, (trace, span)) in enumerate(zip(kinds, named, strict=True)):
        links = [":".join(one) for one in named[number + 1 :]]
        yield traces.RecordedSpan(process="p", name=kind, trace=trace, span=span, links=links, end_ms=9.0)
    trace, span = named[-1]
    attributes = {names.ATTR_TRAJECTORY: TRAJECTORY, names.ATTR_STEP: 1, names.ATTR_VERSION: 12}
    attributes |= {name: 1.5 for _, name in traces.PARTS}
    parts = (names.SPAN_STEP, names.SPAN_REQUEST, names.SPAN_GENERATE, names.SPAN_EXECUTE, names.SPAN_RECORD)
    for number, kind in enumerate((*parts, names.SPAN_SWITCH)):
        own = f"{number:016x}"
        yield traces.RecordedSpan(
            process="p", name=kind, trace=trace, span=own, parent=span, end_ms=9.0, attributes=attributes
        )
        span = own


def pack_contents(sample: bytes) -> bytes:
    """Return a valid bundle of the contents in a sample, whatever they are."""
    body, sections = bytearray(), []
    for part in sample.split(SECTION)[1:]:
        title, *items = part.split(ITEM)
        name = title.decode(errors="replace")
        kind = KINDS.get(name, "lines" if name.startswith("file:") else "records")
        packed = [pack_item(kind, item) for item in items]
        raw = b"".join(struct.pack(">I", len(item)) + item for item in packed)
        compressed = zstandard.ZstdCompressor(write_checksum=True).compress(raw)
        section = bundles.BundleSection(
            name=name,
            kind=kind,
            start=len(body),
            size=len(compressed),
            items=len(packed),
            raw_size=sum(map(len, packed)),
            sha256=bundles.hashlib.sha256(compressed).hexdigest(),
        )
        sections.append(section)
        body += compressed
    directory = bundles.Directory(version=bundles.VERSION, manifest=MANIFEST, sections=sections)
    return with_directory(bytes(body), msgspec.json.encode(directory))


def pack_item(kind: bundles.Kind, item: bytes) -> bytes:
    """Return an item as its section has it."""
    head, *fields = item.split(FIELD)
    if kind == "blobs":
        return msgspec.msgpack.encode((head.decode(errors="replace"), FIELD.join(fields)))
    if kind != "records":
        return item
    key, value, *headers = [*fields, b"", b""] if len(fields) < 2 else fields
    pairs = [(name.decode(errors="replace"), one) for name, one in zip(headers[::2], headers[1::2], strict=False)]
    try:
        return msgspec.msgpack.encode((*msgspec.json.decode(head, type=list[Any]), key, value, pairs))
    except (msgspec.DecodeError, UnicodeError, OverflowError, RecursionError):
        return msgspec.msgpack.encode((0, 0, 0, key, value, pairs))


@contextlib.asynccontextmanager
async def read_bundles(folder: Path) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Read a bundle with each command that takes one; a directory gets golden sections, and contents a directory."""
    sections, _ = directory_of(BUNDLE.read_bytes())
    file = folder / "sample.dart"

    async def play(sample: bytes) -> None:
        if sample.startswith(SECTION):
            sample = pack_contents(sample)
        elif sample.startswith(b"{"):
            sample = with_directory(sections, sample)
        file.write_bytes(sample)
        describe_bundle("sample", file, file.stat().st_mtime_ns)
        opened = bundles.Bundle(file)
        source = BundleSource(opened)
        try:
            for call in itertools.chain(calls_of(opened, folder), views_of(source), lineage_calls(source)):
                with contextlib.suppress(UserError):
                    answer = call()
                    if inspect.isawaitable(answer):
                        await answer
        finally:
            await source.close()

    yield play


def calls_of(opened: bundles.Bundle, folder: Path) -> Iterator[Callable[[], Any]]:
    """Yield the commands without a page: verification, restoration into a folder, replay and what-if."""

    def restored() -> None:
        own = opened.manifest.run.removeprefix("dart.")
        opened.manifest = msgspec.structs.replace(opened.manifest, prefix=f"dart.{own}.")
        config = restore.restored_config(opened, Config(), folder)
        if not (made := folder_of(config, config.run.id)).path.exists():
            restore.make_folder(made, config, opened)
        restore.write_files(made, opened)

    def simulated() -> None:
        variants = {"variant": config_of(opened, ["curation.max_staleness=1"])}
        whatif.compare(whatif.RecordedOutcomes(opened), tasks_of(opened), config_of(opened), variants)

    yield from (lambda: bundles.verify(opened.path), restored, lambda: replay.replay(opened), simulated)


def views_of(source: BundleSource) -> Iterator[Callable[[], Any]]:
    """Yield the views of a page by each id, and its export."""
    views, files = PageViews(source), load_assets(None)

    async def exported() -> None:
        export.render(files, await export.collect(source), source.config.bus.run)

    yield source.read
    for name, identity in itertools.product(views.views, ("", *ids_of(source))):
        yield partial(views.answer, name, {"id": identity, "step": "0", "topic": "observations", "q": "a"})
    yield exported


def ids_of(source: BundleSource) -> tuple[str, ...]:
    """Return :data:`IDS`, and a trajectory and a group that a bundle has."""
    return (*IDS, *itertools.islice(source.state.trajectories, 1), *itertools.islice(source.state.groups, 1))


def lineage_calls(source: BundleSource) -> Iterator[Callable[[], Any]]:
    """Yield the explanations of each id, the slowest requests and the coverage of spans."""
    spans_there = source.bundle.lines(TRACES) if source.bundle.has(TRACES) else ()
    timeline = traces.Timeline(spans_there)
    explained = Explanations(Lineage(source.state, timeline, "golden"), source.config)
    yield partial(traces.slowest_requests, timeline, 5)
    yield partial(traces.measure_coverage, source.state, timeline, "golden")
    yield from (partial(explained.of, name) for name in ids_of(source))
