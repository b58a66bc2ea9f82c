"""Lines of progress come at an interval, whatever the number of items."""

import itertools

from console.bundles import progress
from console.bundles.progress import report_progress
from console.bundles.replay import replay
from console.cli.options import CHECKOUT
from console.runs.bundle import Bundle


def lines_of(count: int, total: int | None) -> list[str]:
    """Return the lines for items that take a second each."""
    seconds, lines = itertools.count(), []
    items = [*report_progress(range(count), "curated", lines.append, total, lambda: float(next(seconds)))]
    assert items == [*range(count)]
    return lines


def test_progress_is_reported_at_its_interval_of_a_known_total(monkeypatch):
    assert lines_of(4, 12) == []
    assert lines_of(11, 12) == ["curated: 5 of 12 so far", "curated: 10 of 12 so far"]
    assert lines_of(5, None) == ["curated: 5 so far"]
    monkeypatch.setattr(progress, "INTERVAL_S", 0.0)
    lines: list[str] = []
    bundle = Bundle(CHECKOUT / "tests/unit/golden/bundle.v1.dart")
    assert replay(bundle, lines.append).equal
    total = bundle.sections["curation-log"].items
    assert lines[-1] == f"inputs decided on again: {total:,} of {total:,} so far"
