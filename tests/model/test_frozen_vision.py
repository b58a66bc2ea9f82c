"""A frozen vision tower: features are computed once a screenshot, and steps are those without the cache."""

from pathlib import Path

import pytest
import torch

from dart_streams.config import parse
from dart_streams.errors import UserError
from dart_streams.policy import tiny
from dart_streams.policy.rendering import Renderer
from tests.model import families
from tests.model.test_trainer_step import full, group_of
from trainer.checkpoint import Checkpoints
from trainer.data.collate import Collator
from trainer.learning import vision
from trainer.learning.frozen_vision import FeatureCache, count_bytes
from trainer.learning.learner import Learner
from trainer.learning.model import load
from trainer.state import TrainerState

FROZEN = {"freeze_vision": True, "micro_batch": 2, "kl_beta": 0.1, "learning_rate": 1e-3}


def new_learner(policy, renderer, ranks, **settings):
    return Learner(policy, renderer, parse({"trainer": {**FROZEN, **settings}}).trainer, ranks)


def copy_weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.weights().items()}


def test_a_frozen_vision_tower_stays_while_the_language_model_learns(policy, renderer, ranks):
    learner = new_learner(policy, renderer, ranks)
    before = copy_weights(learner)
    assert learner.learn([group_of(renderer, 0)], 0, lambda: False).updated
    changed = {name for name, value in copy_weights(learner).items() if not torch.equal(before[name], value)}
    assert changed == {name for name in before if "visual" not in name}


def test_a_checkpoint_beside_a_frozen_vision_tower_is_restored(policy, renderer, ranks, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks)
    first, second = (new_learner(policy, renderer, ranks) for _ in range(2))
    first.learn([group_of(renderer, 0)], 0, lambda: False)
    checkpoints.save(first.scorer, first.optimizer, TrainerState(version=1, train_step=1), 1)
    assert checkpoints.restore(second.scorer, second.optimizer) == TrainerState(version=1, train_step=1)
    restored = copy_weights(second)
    assert all(torch.equal(value, restored[name]) for name, value in copy_weights(first).items())


def restore_of(learner: Learner, folder: Path) -> TrainerState | None:
    return Checkpoints(folder, learner.ranks, learner.frozen_sha256).restore(learner.scorer, learner.optimizer)


def save_of(learner: Learner, folder: Path) -> None:
    state = TrainerState(version=1, train_step=1)
    Checkpoints(folder, learner.ranks, learner.frozen_sha256).save(learner.scorer, learner.optimizer, state, 1)


def test_freezing_at_a_resume_and_another_frozen_tower_are_refused(policy, renderer, ranks, tmp_path):
    whole = new_learner(policy, renderer, ranks, freeze_vision=False, kl_beta=0.0)
    save_of(whole, tmp_path / "whole")
    frozen = new_learner(policy, renderer, ranks, kl_beta=0.0)
    with pytest.raises(UserError, match=r"trained tensors that are frozen now .*visual.*trainer\.freeze_vision"):
        restore_of(frozen, tmp_path / "whole")
    save_of(frozen, tmp_path / "frozen")
    with pytest.raises(UserError, match=r"not of this policy .*trainer\.freeze_vision"):
        restore_of(whole, tmp_path / "frozen")
    tiny.build(tmp_path / "other", seed=7)
    rounded = {"publish": {"dtype": "bfloat16"}}
    for other in (
        new_learner(tmp_path / "other", renderer, ranks, kl_beta=0.0),
        new_learner(policy, renderer, ranks, kl_beta=0.0, **rounded),
    ):
        with pytest.raises(UserError, match="other frozen weights"):
            restore_of(other, tmp_path / "frozen")
    assert restore_of(new_learner(policy, renderer, ranks, kl_beta=0.0), tmp_path / "frozen") is not None


def test_a_model_with_an_unread_layer_is_resumed(ranks, tmp_path):
    families.llava(tmp_path / "llava")
    renderer = Renderer(tmp_path / "llava", 3136, 1_003_520)
    first, second = (new_learner(tmp_path / "llava", renderer, ranks, freeze_vision=False) for _ in range(2))
    assert first.learn([group_of(renderer, 0)], 0, lambda: False).updated
    unread = [name for name, value in first.scorer.named_parameters() if value not in first.optimizer.state]
    assert unread and all("vision_tower" in name for name in unread)
    for saved, restored in ((first, second), (second, first)):
        save_of(saved, tmp_path / "checkpoints")
        assert restore_of(restored, tmp_path / "checkpoints") == TrainerState(version=1, train_step=1)
        weights = copy_weights(restored)
        assert all(torch.equal(value, weights[name]) for name, value in copy_weights(saved).items())


def test_each_screenshot_is_encoded_once_also_in_later_steps(policy, renderer, ranks, monkeypatch):
    learner = new_learner(policy, renderer, ranks, epochs=2)
    encode, seen = vision.encode, []
    monkeypatch.setattr(vision, "encode", lambda *given: seen.append(given) or encode(*given))
    group = group_of(renderer, 0)
    metrics = [learner.learn([group], version, lambda: False).metrics for version in range(2)]
    assert metrics[0]["images_encoded"] == metrics[0]["images_distinct"]
    assert metrics[1]["images_encoded"] == 0
    first = len(seen)
    learner.learn([group], 2, lambda: False)
    assert len(seen) == first


def test_steps_with_kept_features_are_those_without(policy, renderer, ranks):
    gradients = []
    for kept in (True, False):
        learner = new_learner(policy, renderer, ranks, grad_clip=1e9)
        if not kept:
            learner.scorer.features = None
        group = group_of(renderer, 0)
        pieces = learner.collator.pieces([group], 2, 16_384)
        for batch in learner.collator.batches([group], pieces, len(pieces)):
            for _ in range(2):
                logp_BA, _ = learner.scorer(batch)
                logp_BA[batch.mask_BA].sum().backward()
        trained = [(name, value) for name, value in learner.scorer.named_parameters() if value.requires_grad]
        gradients.append({name: full(value.grad) for name, value in trained})
    for name, gradient in gradients[1].items():
        assert (gradients[0][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-8, name


def test_features_beyond_the_bound_are_computed_again(policy, renderer):
    scorer = load(policy, renderer, torch.device("cpu")).requires_grad_(False)
    group = group_of(renderer, 0)
    batch = Collator(renderer).collate(group.samples, group.images)
    images = len(batch.image_ids)
    expected = vision.feature_fields(vision.encode(scorer.policy, batch.images))
    for bound, computed in ((1, 2 * images), (count_bytes(expected), images)):
        cache = FeatureCache(bool, bound)
        for _ in range(2):
            found = vision.feature_fields(cache.encode(scorer.policy, batch))
            for name, value in expected.items():
                torch.testing.assert_close(vision.rows_of(found[name]), vision.rows_of(value), rtol=1e-4, atol=1e-5)
        assert cache.encoded == computed
        assert cache.held_bytes <= bound
