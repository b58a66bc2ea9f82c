"""A rollout worker reads weights only from where its configuration says that they are published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config import parse
from dart_streams.policy.weight_location import base_of, is_covered, location_refusal

BASES = ["s3://bucket/weights", "/runs/r1/weights", "file:///runs/r1/weights"]


@pytest.mark.parametrize("base", BASES)
def test_the_versions_of_the_run_are_covered(base: str):
    uri = f"{base}/v000012-e3"
    assert (is_covered(uri, base), location_refusal(uri, base)) == (True, "")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "uri",
    [
        *("", "http://169.254.169.254/latest/v1-e1", "/etc/v1-e1", "{base}", "{base}/", "{base}/..", "{base}/../v1-e1"),
        *("{base}/other/v1-e1", "{base}-of-another/v1-e1", "simplecache::{base}/v1-e1"),
        *("{base}/v1-e1::http://elsewhere", "{base}/v1-e1?x=1", "{base}/v1-e1\n", "S3://bucket/weights/v1-e1"),
    ],
)
def test_any_other_place_is_refused_and_the_reason_names_the_setting(uri: str, base: str):
    found = location_refusal(uri.replace("{base}", base), base)
    assert base in found
    assert "trainer.weights_uri" in found


@given(st.text(max_size=40))
def test_what_is_covered_stays_beneath_the_base(name: str):
    if is_covered(f"/runs/weights/{name}", "/runs/weights"):
        assert "/" not in name
        assert name.strip(".")


def test_the_base_is_the_configured_one_or_in_the_run_s_folder(tmp_path):
    assert base_of(parse({"trainer": {"weights_uri": "s3://b/w/"}}, source="test")) == "s3://b/w"
    config = parse({"run": {"id": "r", "state_dir": str(tmp_path)}}, source="test")
    assert base_of(config) == str((config.run.folder / "weights").resolve())
