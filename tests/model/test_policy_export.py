"""A trained version becomes a Hugging Face directory that loads on its own."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.policy import exporting, probe, weights
from dart_streams.policy.rendering import Renderer
from tests import events
from tests.model import plain_transformers
from topics.weights import WeightVersion

LIMITS = Config().policy


def published(policy: Path, uri: str) -> WeightVersion:
    """Other weights than the model's own, as a trainer publishes them."""
    state = {name: tensor * 1.5 for name, tensor in weights.model_state(policy).items()}
    sha256 = weights.save(state, uri)
    return events.weight_version(7, uri=uri, sha256=sha256)


def test_an_exported_version_has_its_weights_and_tokenizer(policy, tmp_path):
    target = tmp_path / "there" / "trained"
    version = published(policy, str(tmp_path / "v7"))
    exporting.export(policy, version, target)

    before, after = weights.model_state(policy), weights.model_state(target)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], 1.5 * value) for name, value in before.items())
    assert {file.name for file in policy.iterdir()} == {file.name for file in target.iterdir()}
    assert [place.name for place in target.parent.iterdir()] == ["trained"], "no scratch is left"

    renderers = [Renderer(folder, LIMITS.min_pixels, LIMITS.max_pixels) for folder in (policy, target)]
    assert len({renderer.prompt(probe.probe_turns()).sha for renderer in renderers}) == 1
    stored = plain_transformers.measured_of(target, renderers[1])
    model = AutoModelForImageTextToText.from_pretrained(policy)
    weights.load(model, Path(version.uri))
    assert probe.mean_mismatch(plain_transformers.measured(model, renderers[0]), stored.logprobs) < 1e-6


def test_nothing_is_written_over_and_nothing_half_is_left(policy, tmp_path):
    version = published(policy, str(tmp_path / "v7"))
    with pytest.raises(UserError, match="exists already"):
        exporting.export(policy, version, policy)
    (tmp_path / "v7" / weights.FILE).unlink()
    with pytest.raises(UserError, match="no full weights"):
        exporting.export(policy, version, tmp_path / "trained")
    with pytest.raises(UserError, match="no model directory"):
        exporting.export(tmp_path / "nowhere", version, tmp_path / "trained")
    assert [place.name for place in tmp_path.iterdir()] == ["v7"]
