from pathlib import Path

import pytest

from docs.reference import configuration_page, field_docstrings, iterate_keys, type_of, unit_of

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


def test_the_page_is_that_of_the_present_keys():
    assert PAGE.read_text() == configuration_page(), "write it again: make reference"


@pytest.mark.parametrize("key", list(iterate_keys()), ids=lambda key: key.place)
def test_a_key_is_documented_has_a_type_and_its_own_place_in_the_page(key):
    assert field_docstrings(key.section)[key.field.name].endswith(".")
    assert type_of(key.field.type)[0]
    assert (f"### [{key.table}]" if key.table else "### Top level") in PAGE.read_text()


def test_the_unit_is_in_the_name():
    assert (unit_of("wait_s"), unit_of("step_ms"), unit_of("kv_cache_gib"), unit_of("slots")) == (
        "seconds",
        "milliseconds",
        "GiB",
        "",
    )
