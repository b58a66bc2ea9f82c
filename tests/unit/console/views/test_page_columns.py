"""What the page's file holds: values as columns come back as they were, and short numbers print as the long ones."""

import json
import math
import subprocess
import uuid
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.views.page import columns, export
from console.views.page.columns import Packer, format_figure, shorten
from dart_streams import actions
from dart_streams.actions.arguments import write_arguments
from dart_streams.actions.sequence import format_all
from tests.integration.exported_page import unpack

STATIC = Path(columns.__file__).with_name("static")
IDS = st.integers(0, 12).map(lambda number: str(uuid.UUID(int=number << 80 | number)))
NAMES = st.sampled_from(["=rows", "==rows", "=ids", "back", "a", "7", "__proto__"])
PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text() | IDS
ROWS = st.fixed_dictionaries({"id": IDS, "at": st.integers(0, 9) | st.none(), "to": st.lists(IDS)})
VALUES = st.recursive(
    PLAIN | st.lists(IDS | st.none()) | st.lists(st.integers(10**12, 10**12 + 99)) | st.lists(ROWS | st.none()),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
)
REALS = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6).map(lambda number: number / 2**9)
"""The second kind has ties: 1.625 to three digits."""


def packed(value):
    packer = Packer()
    written = packer.pack(value)
    return json.loads(json.dumps([written, packer.table()]))


@given(VALUES)
def test_a_value_written_as_columns_is_read_as_it_was(value):
    assert unpack(*packed(value)) == value


def test_ids_counters_and_names_of_fields_are_written_once():
    rows = [{"trajectory_id": str(uuid.UUID(int=n % 5)), "at_ms": 17 * 10**11 + n, "of": [1, 2]} for n in range(100)]
    written = json.dumps(packed(rows))
    assert written.count("trajectory_id") == 1
    assert written.count("1700000000") == 1
    assert len(json.loads(written)[1]["heads"]) == 5


@given(REALS)
def test_a_shortened_number_prints_as_the_original(value):
    short = shorten(value, export.as_metric)
    assert [format_figure(short, digits) for digits in (3, 4)] == [format_figure(value, digits) for digits in (3, 4)]
    assert len(repr(short)) <= len(repr(value))


@given(st.floats(0, 1e5))
def test_a_pause_is_rounded_in_its_table_as_the_long_number_is(value):
    short = shorten(value, export.as_pause)
    assert math.floor(short + 0.5) == math.floor(value + 0.5)
    assert export.trim_line([17.4996, 17.0], export.as_pause)[0] < 17.5


@given(st.lists(REALS | st.none(), min_size=1))
def test_a_line_keeps_its_place_in_the_plot(line):
    known = [value for value in line if value is not None]
    height = max(known) - min(known) if known else 0.0
    for value, short in zip(line, export.trim_line(line), strict=True):
        assert (short is None) == (value is None)
        assert value is None or abs(short - value) <= height / export.PLOT_RESOLUTION


def test_a_curve_that_is_almost_level_is_not_made_level():
    line = [1234.0 + step / 1000 for step in range(100)]
    assert len(set(export.trim_line(line))) == len(line)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0, -0.0, 1e300, 5e-324, 999.96, 466939.0])
def test_ends_of_the_scale_are_kept(value):
    assert shorten(value, export.as_metric) == value


@pytest.mark.skipif(which("node") is None, reason="Node is a need of development only")
@settings(max_examples=1)
@given(st.lists(st.tuples(VALUES, REALS), min_size=200, max_size=200))
def test_the_pages_own_scripts_read_and_print_the_same(cases):
    script = """
    import { unpack } from %s;
    import { number } from %s;
    const cases = JSON.parse(await new Response(process.stdin).text());
    const printed = (one) => [number(one, 3), number(one, 4)];
    const read = cases.map(([[value, table], ...all]) => [unpack(value, table), ...all.map(printed)]);
    console.log(JSON.stringify(read));
    """ % tuple(json.dumps((STATIC / name).as_uri()) for name in ("columns.js", "format.js"))  # noqa: UP031
    given_to = [[packed(value), real, shorten(real, export.as_metric)] for value, real in cases]
    command = ["node", "--input-type=module", "--no-warnings", "-e", script]
    done = subprocess.run(command, input=json.dumps(given_to), capture_output=True, text=True, check=True, timeout=60)
    for (value, real), (read, long, short) in zip(cases, json.loads(done.stdout, parse_int=float), strict=True):
        assert read == json.loads(json.dumps(value), parse_int=float)
        assert long == short, real


@pytest.mark.skipif(which("node") is None, reason="Node is a need of development only")
def test_the_page_shows_a_called_function_with_its_arguments():
    call = actions.Call("calc.set_cells", {"cells": {"B3": "it's \\ \n", "key": "content='x'"}})
    texts = [actions.format(call), format_all([call, actions.Click(1, 2)]), actions.format(actions.Type("a"))]
    script = f"import {{ brief }} from {json.dumps((STATIC / 'format.js').as_uri())};"
    script += f"console.log(JSON.stringify({json.dumps(texts)}.map(brief)));"
    command = ["node", "--input-type=module", "--no-warnings", "-e", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    alone, first, other = json.loads(done.stdout)
    assert alone == f"calc.set_cells({write_arguments(call.arguments)})"
    assert first.startswith(alone)
    assert other == "type('a')"
