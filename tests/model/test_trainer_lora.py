"""The trainer with adapters: they alone are trained, and what it publishes is what it computes with, to the bit."""

import functools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from peft import PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForImageTextToText

from benchmarks.synthetic_groups import Maker
from dart_streams.config import Config, parse
from dart_streams.errors import UserError
from dart_streams.policy import adapters, probe, tiny, weights
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.rendering import Renderer
from dart_streams.policy.resident_weights import ResidentWeights
from tests.model import plain_transformers
from tests.model.test_resident_weights import announced
from tests.model.test_trainer_deltas import PROBE, Versions
from tests.model.test_trainer_run import Run
from tests.model.test_trainer_step import full, plain_logp, ready
from trainer.checkpoint import Checkpoints
from trainer.learning import lora
from trainer.learning.learner import Learner, WeightSnapshot
from trainer.state import TrainerState
from trainer.version_writer import VersionWriter

RANK, ALPHA, RATE = 4, 8, 1e-2
ONE = {"rank": RANK, "targets": ["v_proj"]}


def settings(**trainer: Any) -> Config:
    given = {"learning_rate": RATE, "lora": {"rank": RANK, "alpha": ALPHA}, **trainer}
    return parse({"trainer": {"micro_batch": 3, **given}})


def learn(learner: Learner, renderer: Renderer, index: int) -> None:
    group = ready(Maker(Config(), renderer).group(index), renderer)
    assert learner.learn([group], 0, lambda: False).updated


def test_a_step_trains_the_adapters_of_the_language_model_and_nothing_else(policy, renderer, ranks):
    learner = Learner(policy, renderer, settings().trainer, ranks)
    before = {name: value.clone() for name, value in learner.weights().items()}
    learn(learner, renderer, 0)
    after = learner.weights()
    assert before.keys() == after.keys() == weights.model_state(policy).keys(), "without peft's names"
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    layers = {f"{name}.weight" for name, _ in lora.layers_of(learner.scorer.policy)}
    assert moved == layers
    assert len(layers) == 7 * learner.scorer.policy.config.get_text_config().num_hidden_layers
    assert all("language_model" in name for name in layers)
    trained = {name for name, value in learner.scorer.named_parameters() if value.requires_grad}
    assert all(".lora_" in name for name in trained)
    held = [value for group in learner.optimizer.param_groups for value in group["params"]]
    assert len(held) == len(trained) == len(learner.optimizer.state) == 2 * len(layers)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_is_that_of_peft_and_torch(policy, renderer, ranks, recompute):
    config = settings(recompute=recompute, grad_clip=0.5)
    learner = Learner(policy, renderer, config.trainer, ranks)
    group = ready(Maker(config, renderer).group(1), renderer)

    plain: Any = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32).eval()
    names = [name for name, _ in lora.layers_of(learner.scorer.policy)]
    wrapped: Any = get_peft_model(plain, lora.config_of(config.trainer.lora, names))
    begun = {name: value.clone() for name, value in lora.tensors_of(learner.scorer.policy, True).items()}
    assert begun.keys() == get_peft_model_state_dict(wrapped).keys(), "the file has peft's own names"
    wrapped.load_state_dict({name.replace(".weight", ".default.weight"): v for name, v in begun.items()}, strict=False)

    learned = learner.learn([group], 0, lambda: False)
    trained = [value for value in wrapped.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    tokens = sum(len(item.answer) for item in group.samples)
    for item in group.samples:
        logp = plain_logp(plain, renderer, item, group.images)
        weight = torch.exp(logp.detach() - torch.tensor(item.logprobs)).clamp(max=config.trainer.truncate.cap)
        (-(weight * item.advantage * torch.exp(logp - logp.detach())).sum() / tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(trained, 0.5)
    optimizer.step()
    assert learned.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    stepped = lora.tensors_of(learner.scorer.policy, True)
    for name, expected in get_peft_model_state_dict(wrapped).items():
        torch.testing.assert_close(stepped[name], expected, rtol=0, atol=RATE * 0.05)
    assert any(not torch.equal(stepped[name], value) for name, value in begun.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_and_probe_equal_the_workers_bit_for_bit(policy, renderer, ranks, tmp_path, dtype):
    config = settings(publish={"dtype": dtype})
    learner = Learner(policy, renderer, config.trainer, ranks)
    writer, resident = VersionWriter(config.trainer.publish), ResidentWeights(tmp_path / "cache")
    plain: Any = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32).eval()
    sizes, versions = [], []
    for number in range(3):
        snapshot = learner.snapshot()
        written = writer.write(str(tmp_path / f"v{number:06d}-e1"), number, *snapshot)
        versions.append(announced(written.own, written.base))
        sizes.append(written.size_bytes)
        resident.advance(versions[-1])
        assert resident.sha256 == versions[-1].sha256 == weights.digest_tensors(resident.tensors)
        assert all(torch.equal(resident.tensors[name], value) for name, value in snapshot.tensors.items())
        assert {value.dtype for value in snapshot.tensors.values()} == {getattr(torch, dtype)}
        plain.load_state_dict({name: value.float() for name, value in resident.tensors.items()})
        assert probe.mean_mismatch(snapshot.probe, plain_transformers.measured(plain, renderer).logprobs) < 1e-5
        learn(learner, renderer, number)
    assert [version.kind for version in versions] == ["full", "adapter", "adapter"]
    assert len({version.sha256 for version in versions}) == 3
    assert max(sizes[1:]) < sizes[0] / 5

    base: Any = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, versions[-1].uri).merge_and_unload()
    for name, value in weights.own_state(loaded).items():
        difference = (value.to(getattr(torch, dtype)).float() - resident.tensors[name].float()).abs().max()
        assert difference <= (1e-6 if dtype == "float32" else 4e-3), f"{name}, as peft merges it"


def test_what_is_published_leaves_the_trainers_own_weights_as_they_were(policy, renderer, ranks):
    learner = Learner(policy, renderer, settings(publish={"dtype": "bfloat16"}).trainer, ranks)
    learn(learner, renderer, 0)
    before = {name: full(value).clone() for name, value in learner.scorer.state_dict().items()}
    learner.snapshot()
    assert all(torch.equal(full(value), before[name]) for name, value in learner.scorer.state_dict().items())
    learn(learner, renderer, 1)


@pytest.mark.parametrize(
    ("targets", "names"), [(["q_proj", "v_proj"], {"q_proj", "v_proj"}), (["self_attn.o_proj"], {"o_proj"})]
)
def test_targets_match_name_suffixes_of_language_model_layers(policy, renderer, ranks, targets, names):
    learner = Learner(policy, renderer, settings(lora={"rank": 2, "targets": targets}).trainer, ranks)
    layers = [name for name, _ in lora.layers_of(learner.scorer.policy)]
    assert {name.rpartition(".")[2] for name in layers} == names
    assert all("language_model" in name for name in layers)


def test_a_target_that_the_model_has_not_is_refused_with_those_it_has(policy, renderer, ranks):
    """``qkv`` is of the vision tower, and ``proj`` the end of a name but no component of it."""
    for target in ("c_attn", "qkv", "proj"):
        config = settings(lora={"rank": 2, "targets": ["q_proj", target]})
        with pytest.raises(UserError, match=rf"trainer\.lora\.targets: .*'{target}'; it has .*down_proj.*q_proj"):
            Learner(policy, renderer, config.trainer, ranks)


def test_a_resumed_trainer_continues_adapters_bit_for_bit(policy, renderer, ranks, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks)
    first = Learner(policy, renderer, settings().trainer, ranks)
    learn(first, renderer, 0)
    checkpoints.save(first.scorer, first.optimizer, TrainerState(version=1, train_step=1), 1)
    [folder] = checkpoints.complete()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size < (policy / weights.FILE).stat().st_size / 5

    second = Learner(policy, renderer, settings().trainer, ranks)
    restored = checkpoints.restore(second.scorer, second.optimizer)
    assert restored is not None and restored.train_step == 1
    for learner in (first, second):
        learn(learner, renderer, 1)
    untrained = Learner(policy, renderer, settings().trainer, ranks)
    digests = [weights.digest_tensors(learner.snapshot().tensors) for learner in (first, second, untrained)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "other", [{"rank": 0}, {"rank": 8}, {"rank": RANK, "targets": ["q_proj"]}, {**ONE, "alpha": 32}]
)
def test_a_checkpoint_of_other_adapters_is_refused_with_the_key(policy, renderer, ranks, tmp_path, other):
    checkpoints = Checkpoints(tmp_path / "checkpoints", ranks)
    saved = Learner(policy, renderer, settings(lora=ONE).trainer, ranks)
    learn(saved, renderer, 0)
    checkpoints.save(saved.scorer, saved.optimizer, TrainerState(version=1, train_step=1), 1)
    learner = Learner(policy, renderer, settings(lora=other).trainer, ranks)
    with pytest.raises(UserError, match=r"trainer\.lora"):
        checkpoints.restore(learner.scorer, learner.optimizer)


@pytest.mark.parametrize(
    ("trainer", "is_other", "said"),
    [
        ({}, True, r"other frozen weights .*policy\.path"),
        ({"publish": {"dtype": "bfloat16"}}, False, r"other frozen weights .*trainer\.publish\.dtype"),
        ({"lora": {"rank": 0}, "kl_beta": 0.1}, True, r"other frozen weights .*trainer\.kl_beta"),
    ],
    ids=["base", "rounded base", "reference"],
)
def test_a_run_does_not_resume_with_other_frozen_weights(policy, renderer, ranks, tmp_path, trainer, is_other, said):
    tiny.build(tmp_path / "other", seed=1)
    before = settings(**({} if "publish" in trainer else trainer)).trainer
    saved = Learner(policy, renderer, before, ranks)
    learn(saved, renderer, 0)
    Checkpoints(tmp_path / "checkpoints", ranks, saved.frozen_sha256).save(
        saved.scorer, saved.optimizer, TrainerState(version=1, train_step=1), 1
    )
    folder = tmp_path / "other" if is_other else policy
    learner = Learner(folder, renderer, settings(**trainer).trainer, ranks)
    with pytest.raises(UserError, match=said):
        Checkpoints(tmp_path / "checkpoints", ranks, learner.frozen_sha256).restore(learner.scorer, learner.optimizer)
    again = Learner(policy, renderer, before, ranks)
    assert Checkpoints(tmp_path / "checkpoints", ranks, again.frozen_sha256).restore(again.scorer, again.optimizer)


@pytest.fixture
def publishing(new_run: Callable[..., Run]) -> Callable[..., Run]:
    return functools.partial(new_run, learning_rate=1e-3, lora={"rank": RANK})


class AdapterVersions(Versions):
    """As its base, of one frozen layer and an adapter of it."""

    def snapshot(self, number: int) -> WeightSnapshot:
        random = torch.Generator().manual_seed(number)
        down, up = torch.rand(2, 50, generator=random), torch.rand(100, 2, generator=random) * min(number, 1)
        base = {"a.weight": self.state.reshape(100, 50)}
        tensors = {"base_model.model.a.lora_A.weight": down, "base_model.model.a.lora_B.weight": up}
        adapter = Adapter(tensors, 0.5, b"{}", base)
        return WeightSnapshot(adapters.with_adapter(base, tensors, 0.5), PROBE, adapter)

    def names(self) -> list[str]:
        filesystem, folder = fsspec.core.url_to_fs(self.base)
        return sorted(Path(place).name for place in filesystem.ls(folder, detail=False))


def test_an_adapter_that_failed_to_load_is_published_whole_then_rebased(publishing, tmp_path):
    place = f"memory://{uuid.uuid4().hex}/weights"
    stored = AdapterVersions(publishing(keep_versions=1, weights_uri=place), place)
    late = ResidentWeights(tmp_path)
    with stored.publisher as publisher:
        publisher.begin(None, stored.snapshot(0))
        assert [stored.publish(number) for number in (1, 2, 3)] == ["adapter"] * 3
        stored.announce(3)
        assert stored.publish(4) == "adapter"
        assert stored.names() == ["v000000-e1", "v000003-e1", "v000004-e1"], "the base is older than any kept version"
        filesystem, folder = fsspec.core.url_to_fs(stored.base)
        filesystem.rm(f"{folder}/v000000-e1/{weights.FILE}")
        with pytest.raises(weights.MissingWeights, match="version 0"):
            late.advance(stored.ours.versions()[-1])
        stored.announce(3, failed=4)
        publisher.heal()
        healed = stored.ours.versions()[-1]
        assert (healed.version, healed.kind, healed.base) == (4, "full", [])
        late.advance(healed)
        assert late.sha256 == weights.digest_tensors(stored.snapshot(4).tensors)
        publisher.heal()
        assert stored.ours.versions()[-1] == healed, "once is enough"
        stored.announce(4)
        assert [stored.publish(number) for number in (5, 6)] == ["adapter", "adapter"]
        stored.announce(6)
        assert stored.publish(7) == "adapter"
        assert stored.names() == ["v000005-e1-base", "v000006-e1", "v000007-e1"]
        late.advance(stored.ours.versions()[-1])
        assert late.sha256 == weights.digest_tensors(stored.snapshot(7).tensors)
