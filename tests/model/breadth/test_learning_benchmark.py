"""The benchmark of learning: it scores as the trainer does, samples what it scores, and its circle trains."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
import torch

from benchmarks.learning import play, policy, report, results, variants
from benchmarks.learning.circle import LearningCircle, RecordedScreens, scorer_of
from benchmarks.learning.network import PrefixScorer, Sampler
from benchmarks.learning.screens import write
from dart_streams.config import parse
from dart_streams.policy.rendering import Prompt, Renderer
from tests.unit.benchmarks import learning_pages
from topics.values import Sampling
from trainer.data.collate import Collator

TASKS = learning_pages.task_set()
RECORDING = learning_pages.recording(TASKS)
TASK_FILE = {"pages": msgspec.to_builtins(TASKS.pages)}
SETTINGS: dict[str, Any] = {
    "env": {"slots": 8},
    "policy": {"max_images": 1, "max_texts": 5},
    "warmup": {"demonstrations": 16, "steps": 60, "batch": 16, "learning_rate": 2e-3},
    "curation": {"budget": {"base": 4}},
    "trainer": {"groups_per_step": 2, "learning_rate": 3e-4},
}
CONFIG = parse(SETTINGS)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy.warm_policy(CONFIG, TASKS, RECORDING, tmp_path_factory.mktemp("policies"))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_sampled_tokens_have_the_scorers_log_probabilities(warm, temperature):
    renderer = Renderer(warm, CONFIG.policy.min_pixels, CONFIG.policy.max_pixels)
    screens = RecordedScreens(RECORDING, renderer)
    groups = policy.demonstration_groups(CONFIG, TASKS, RECORDING, renderer)
    samples = [item for group in groups for item in group.samples][:8]
    prompts = [
        msgspec.convert({"token_ids": item.prompt, "images": item.images, "sha": str(number)}, Prompt)
        for number, item in enumerate(samples)
    ]
    scorer = scorer_of(warm, renderer)
    made = Sampler(scorer, renderer, screens.image_of).answer(
        prompts, Sampling(temperature=temperature, max_tokens=8), torch.Generator().manual_seed(0)
    )
    drawn = [
        msgspec.structs.replace(item, answer=one.tokens, temperature=temperature or 1.0)
        for item, one in zip(samples, made, strict=True)
    ]
    batch = Collator(renderer).collate(drawn, RECORDING.images)
    logp_BA, entropy_BA = scorer(batch)
    for row, one in enumerate(made):
        count = len(one.tokens)
        torch.testing.assert_close(logp_BA[row, :count], torch.tensor(one.logprobs), atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(entropy_BA[row, :count], torch.tensor(one.entropies), atol=2e-5, rtol=1e-4)
        assert count == 8 or one.tokens[-1] == renderer.eos


def circle_of(warm: Path, seed: int = 0, **tables: Any) -> LearningCircle:
    return LearningCircle(parse(variants.merge_tables(SETTINGS, tables)), TASKS, RECORDING, warm, seed)


def weights_of(circle: LearningCircle) -> torch.Tensor:
    return weights_in(circle.learner.scorer)


def weights_in(scorer: PrefixScorer) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in scorer.parameters()])


def test_the_circle_trains_and_the_same_seed_gives_the_same_weights(warm):
    first, again, other = circle_of(warm), circle_of(warm), circle_of(warm, seed=1)
    start = weights_of(first)
    for circle in (first, again, other):
        circle.run(64)
    assert first.policy.version == len(first.metrics) >= 2
    assert first.consumed >= 2 * first.policy.version
    assert not torch.equal(weights_of(first), start)
    assert torch.equal(weights_of(again), weights_of(first))
    assert not torch.equal(weights_of(other), weights_of(first))
    assert all(step["mismatch"] < 1e-3 for step in first.metrics if step["same_version_tokens"]), (
        "it trains what it drew"
    )


def test_what_a_variant_sets_reaches_the_objective(warm):
    imitating = circle_of(warm, trainer={"imitate": {"trajectories": 1}})
    imitating.run(64)
    assert any("imitation_nll" in step for step in imitating.metrics)
    kept_near = circle_of(warm, trainer={"kl_beta": 0.1, "minibatches": 2})
    kept_near.run(48)
    assert kept_near.metrics[-1]["kl_reference"] > 0
    assert kept_near.metrics[-1]["updates"] == 2


@pytest.mark.parametrize("mode", ["task-wise", "coupled"])
def test_another_dispatch_plays_the_same_number_of_episodes(warm, mode):
    circle = circle_of(warm, curation={"dispatch": {"mode": mode}})
    circle.run(64)
    assert circle.episodes >= 64 and circle.policy.version >= 2
    if mode == "coupled":
        assert all(step["mismatch"] < 1e-3 for step in circle.metrics), "a batch is trained before the next one begins"


def test_rollout_workers_switch_one_after_another(warm):
    circle = circle_of(warm, rollout={"workers": 3}, curation={"max_staleness": 6})
    first, *others = circle.workers.workers
    circle.run(64)
    assert circle.policy.version >= 2
    assert len({worker.version for worker in circle.workers.workers}) > 1
    assert max(step["mismatch"] for step in circle.metrics) > 1e-3, "the workers play older versions"
    while any(worker.version < circle.policy.version for worker in (first, *others)):
        assert len(circle.workers.roll()) == 1
    assert not circle.workers.roll()
    assert all(torch.equal(weights_in(worker.sampler.scorer), weights_of(circle)) for worker in (first, *others))


def test_one_worker_has_the_trainers_weights_unless_these_are_rounded(warm):
    plain, rounded = circle_of(warm), circle_of(warm, trainer={"publish": {"dtype": "bfloat16"}})
    assert plain.workers.workers == [plain.policy]
    [worker] = rounded.workers.workers
    own, newest = weights_in(worker.sampler.scorer), weights_of(rounded)
    assert torch.equal(own, newest.bfloat16().float()) and not torch.equal(own, newest)
    rounded.run(32)
    assert rounded.metrics[0]["mismatch"] > 1e-4


def test_runs_are_added_to_the_file_and_not_made_again(tmp_path):
    (tmp_path / "tasks.toml").write_text(tomli_w.dumps(TASK_FILE))
    (tmp_path / "base.toml").write_text(tomli_w.dumps(SETTINGS))
    file = tmp_path / "variants.toml"
    file.write_text('deployment = "base.toml"\nvariants.gspo.trainer.objective = "gspo"\n')
    recorded = tmp_path / "screens.msgpack"
    write(recorded, RECORDING)
    player, chosen = play.Player(recorded, 32, marks=3), variants.read(file)
    lines: list[str] = []
    for seeds in ([0], [0, 1]):
        play.compare(player, chosen, seeds, tmp_path / "runs.jsonl", lines.append)
    runs = results.read(tmp_path / "runs.jsonl")
    assert [(run.variant, run.seed) for run in runs] == [("base", 0), ("gspo", 0), ("base", 1), ("gspo", 1)]
    assert len(lines) == 4
    for run in runs:
        assert [mark.episodes for mark in run.curve] == [0, 16, 24, 32]
        assert run.curve[0].rate == results.rate_at(run.before, 1.0)
        assert set(run.before[0].pages) == {"one", "two"}
        assert run.train_after is not None and 0 < run.train_after.rate <= 1
    assert runs[0].before == runs[3].before, "all begin with the same policy"
    assert runs[0].train_before == runs[3].train_before != runs[0].train_after
    [base, other] = report.compare_variants(runs)
    assert (base.variant, other.variant, other.seeds) == ("base", "gspo", 2)


@pytest.mark.parametrize("objective", ["gspo", "cispo"])
def test_with_one_update_a_step_the_objectives_differ_in_nothing(warm, objective):
    """Every ratio is 1 then, which no clip touches: why variants of the objective have several updates a step."""
    plain, other = circle_of(warm), circle_of(warm, trainer={"objective": objective, "aggregate": "tokens"})
    for circle in (plain, other):
        circle.run(64)
    torch.testing.assert_close(weights_of(other), weights_of(plain), atol=1e-5, rtol=1e-4)
