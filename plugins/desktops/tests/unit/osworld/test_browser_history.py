import sqlite3

import pytest

from dart_desktops.osworld.browser_setup import same_page, with_visits
from dart_desktops.osworld.steps import VisitedPage
from workers.env.environment import EnvironmentFault

SCHEMA = """
CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden);
CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, visit_duration);
"""


def test_visits_are_added_at_times_of_the_browsers_own_epoch():
    rows = sqlite3.connect(":memory:")
    rows.executescript(SCHEMA)
    day = VisitedPage("https://a.example", "A", 86400.0)
    changed = sqlite3.connect(":memory:")
    changed.deserialize(with_visits(rows.serialize(), [day], now_s=86400.0))
    assert changed.execute("SELECT url, title, last_visit_time FROM urls").fetchall() == [
        ("https://a.example", "A", 11_644_473_600_000_000)
    ]
    assert changed.execute("SELECT url, visit_time FROM visits").fetchall() == [(1, 11_644_473_600_000_000)]


def test_what_is_no_history_is_a_fault():
    with pytest.raises(EnvironmentFault, match="no history"):
        with_visits(b"not a database", [VisitedPage("u", "t", 1.0)], now_s=0.0)


def test_pages_are_the_same_but_for_scheme_www_and_the_last_slash():
    assert same_page("https://www.a.example/x/", "http://a.example/x")
    assert not same_page("https://a.example/x?q=1", "https://a.example/x?q=2")
