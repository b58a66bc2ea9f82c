"""The spans that a run's processes left, by id, by trace, and by what they are of."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.telemetry import names
from dart_streams.telemetry.spans import SpanRef


class RecordedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span as a line of a file; times are epoch milliseconds, ids and links hex."""

    process: str
    name: str
    trace: str
    span: str
    parent: str | None = None
    start_ms: float = 0.0
    end_ms: float = 0.0
    status: str = "UNSET"
    attributes: dict[str, Any] = {}
    links: list[str] = []

    @property
    def ms(self) -> float:
        """How long it lasted."""
        return self.end_ms - self.start_ms


_decoder = msgspec.json.Decoder(RecordedSpan)


def id_of(ref: SpanRef) -> str:
    """Return a span's id as links have it: ``trace:span``, in hex."""
    return f"{ref.trace_id:032x}:{ref.span_id:016x}"


class Timeline:
    """All spans of a run."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.by_id: dict[str, RecordedSpan] = {}
        self.traces: dict[str, list[RecordedSpan]] = defaultdict(list)
        self.steps: dict[tuple[str, int], RecordedSpan] = {}
        self.switches: dict[int, list[RecordedSpan]] = defaultdict(list)
        for line in lines:
            try:
                self._add(_decoder.decode(line))
            except msgspec.DecodeError:
                continue  # the last line of a process that was killed

    def get(self, ref: SpanRef) -> RecordedSpan | None:
        """Return the span, or None."""
        return self.by_id.get(id_of(ref))

    def step(self, trajectory_id: str, step: int) -> RecordedSpan | None:
        """Return the span of the step that was decided on screen ``step``, or None."""
        return self.steps.get((trajectory_id, step))

    def _add(self, span: RecordedSpan) -> None:
        self.by_id[f"{span.trace}:{span.span}"] = span
        self.traces[span.trace].append(span)
        if span.name == names.SPAN_STEP:
            place = (span.attributes.get(names.ATTR_TRAJECTORY, ""), span.attributes.get(names.ATTR_STEP, -1))
            self.steps[place] = span
        elif span.name == names.SPAN_SWITCH:
            self.switches[span.attributes.get(names.ATTR_VERSION, -1)].append(span)


def lines_in(folder: Path) -> Iterator[bytes]:
    """Yield the lines of a run's trace files."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            yield from file
