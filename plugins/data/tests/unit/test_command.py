"""``dart-streams data`` says what is wrong with its options."""

import pytest

from dart_data import command as data
from dart_streams.errors import UserError
from topics.values import OutcomeKind


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
