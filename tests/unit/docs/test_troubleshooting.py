"""Each message of the page on troubleshooting is in the code, and each topic that it names is one."""

import re

import pytest

import topics
from tests.sources import PRODUCT, ROOT

ROW = re.compile(r"^\| (?:many |outcome |records in a topic's )?`([^`]+)` \|", re.MULTILINE)
FIRST = ROW.findall((ROOT / "docs/troubleshooting.md").read_text())
CODE = "\n".join(path.read_text() for package in PRODUCT for path in (ROOT / package).rglob("*.py"))


def test_there_are_rows_to_check():
    assert len(FIRST) > 20


@pytest.mark.parametrize("text", FIRST)
def test_what_the_page_quotes_is_a_message_or_a_topic(text: str):
    assert text in topics.BY_NAME or text in CODE
