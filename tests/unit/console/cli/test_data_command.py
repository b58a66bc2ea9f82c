"""``dart-streams data`` says what is wrong with its options, and where its libraries are."""

from importlib.util import find_spec

import pytest

from console.cli import data, main
from dart_streams.errors import UserError
from tests.fork_server import PROGRAM, run
from topics.values import OutcomeKind


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="this environment has pyarrow")
def test_without_its_libraries_the_command_names_the_one_to_run(tmp_path):
    done = run([PROGRAM, "data", "export", tmp_path / "a set.parquet", "--run", "one"], text=True, timeout=60)
    assert done.returncode == 2
    assert "this needs pyarrow, which only .venv/data has" in done.stderr
    assert f".venv/data/bin/dart-streams data export '{tmp_path}/a set.parquet' --run one" in done.stderr
    assert "`make data` makes it" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("library", sorted(main.DATA_LIBRARIES))
def test_each_library_of_the_data_environment_is_known_as_such(library):
    error = main.other_environment(["worker", "tracker"], f"{library}.inner")
    assert ".venv/data/bin/dart-streams worker tracker" in str(error)


@pytest.mark.parametrize(
    ("text", "bounds"), [("", (None, None)), ("3", (3, 3)), ("3..", (3, None)), ("..7", (None, 7)), ("3..7", (3, 7))]
)
def test_a_range_of_versions(text, bounds):
    assert data.version_range(text) == bounds


def test_an_option_that_means_nothing_is_refused_with_what_there_is():
    with pytest.raises(UserError, match=r"give 3, 3\.\., \.\.7 or 3\.\.7"):
        data.version_range("new")
    with pytest.raises(UserError, match="--outcome 'won': there are success, failure"):
        data.parse_names("--outcome", "success,won", OutcomeKind)
    assert data.parse_names("--outcome", " success, failure ", OutcomeKind) == ["success", "failure"]
