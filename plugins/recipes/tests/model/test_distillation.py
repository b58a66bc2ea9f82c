"""On-policy distillation: the value by hand, a real teacher behind vLLM's server, and a student that it lifts."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForImageTextToText

from dart_recipes.distillation import training
from dart_recipes.distillation.rules import Settings
from dart_streams.config import Config, parse
from dart_streams.curation.hooks import Own
from dart_streams.policy.rendering import Renderer
from plugins.recipes.tests.model import boxes
from tests.model.breadth import vllm_server
from tests.model.test_trainer_step import group_of
from trainer.data.samples import ReadyGroup
from trainer.data.scores import ScoreRequest, add_scores
from trainer.hooks import LossInputs, TrainingRules
from trainer.learning.learner import Learner
from trainer.ranks import Ranks, join_job

KEY = "a key that is in no log"
TEACHER_UPDATES, STUDENT_UPDATES = 60, 12
STEPS, ROLLOUTS = 40, 32


def inputs(new: torch.Tensor, old: list[float], scores: list[float], scored: list[bool], **settings: Any) -> LossInputs:
    """Return one sequence of tokens as the inputs of a loss; importance weights are 1 but for the last, 0.5."""
    mask_BA = torch.ones(1, len(old), dtype=torch.bool)
    weight_BA = torch.ones(1, len(old))
    weight_BA[0, -1] = 0.5
    batch: Any = SimpleNamespace(scores_BA=torch.tensor([scores]), scored_BA=torch.tensor([scored]) & mask_BA)
    old_BA, trainer = torch.tensor([old]), parse({"trainer": settings}).trainer
    return LossInputs(new, old_BA, old_BA, torch.zeros(1, 1), weight_BA, mask_BA, batch, len(old), trainer)


def test_the_term_of_the_loss_is_that_by_hand():
    """Advantages -(-1 + 3) = -2, -(-2 + 0.5) = 1.5 and, weighted by 0.5, -(-1 + 2) = -1; the fourth is not scored.

    The loss is the mean of 2, -1.5, 0 and 0.5 over four tokens; each token's gradient is its negative advantage.
    """
    new_BA = torch.tensor([[-1.0, -2.0, -4.0, -1.0]], requires_grad=True)
    made = inputs(new_BA, [-1.0, -2.0, -4.0, -1.0], [-3.0, -0.5, 0.0, -2.0], [True, True, False, True])
    loss = training.reverse_kl(Own(Settings(), None), made)
    loss.backward()
    assert loss.item() == pytest.approx((2.0 - 1.5 + 0.5) / 4)
    assert new_BA.grad is not None
    assert (4 * new_BA.grad)[0].tolist() == pytest.approx([2.0, -1.5, 0.0, 0.5])
    assert training.reverse_kl(Own(Settings(weight=0.1), None), made).item() == pytest.approx(0.1 * loss.item())


def test_the_advantage_is_bounded_and_the_ratio_has_the_new_weights():
    new_BA = torch.tensor([[-1.0 + 0.1, -1.0]], requires_grad=True)
    made = inputs(new_BA, [-1.0, -1.0], [-9999.0, -1.0], [True, True])
    loss = training.reverse_kl(Own(Settings(bound=5.0), None), made)
    assert loss.item() == pytest.approx(5.0 * torch.tensor(0.1).exp().item() / 2)


def test_the_metric_of_the_term_is_the_reverse_kl(policy: Path, renderer: Renderer, ranks: Ranks):
    group = group_of(renderer, 0)
    own = {"correction": "none"}
    learner = Learner(policy, renderer, parse({"trainer": own}).trainer, ranks, rules=term_alone())
    mine = boxes_logprobs(learner, renderer, group)
    teacher = [[value - 0.25 for value in of] for of in mine]
    scored = msgspec.structs.replace(group, samples=add_scores(group.samples, teacher))
    assert learner.learn([scored], 0, lambda: False).metrics["loss_terms"] == pytest.approx(0.25, abs=1e-5)


def boxes_logprobs(learner: Learner, renderer: Renderer, group: ReadyGroup) -> list[list[float]]:
    """Return a learner's log-probabilities of each of a group's answers, of several steps a trajectory."""
    found = []
    for item in group.samples:
        found += boxes.logprobs_of(learner, renderer, msgspec.structs.replace(group, samples=[item]))
    return found


def term_alone() -> TrainingRules:
    """Return the rules of a run with the recipe, as far as a learner knows them."""
    return TrainingRules(terms=partial(training.reverse_kl, Own(Settings(), None)))


def learner_of(policy: Path, renderer: Renderer, ranks: Ranks, updates: int) -> Learner:
    """Return a policy that has imitated the right answers so often."""
    settings = parse({"trainer": {"learning_rate": 3e-3, "micro_batch": ROLLOUTS}}).trainer
    learner = Learner(policy, renderer, settings, ranks, rules=term_alone())
    for seed in range(updates):
        learner.imitate([boxes.solved(renderer, seed, ROLLOUTS)])
    return learner


@pytest.fixture(scope="module")
def teacher(policy: Path, renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A warmed-up policy behind vLLM's own server: its folder, and the server's URL."""
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    with join_job() as ranks:
        learner = learner_of(policy, renderer, ranks, TEACHER_UPDATES)
        assert boxes.success_rate(policy, learner, renderer) >= 0.9
        plain = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32)
        plain.load_state_dict(dict(learner.weights()), strict=False)
    folder.mkdir()
    for file in policy.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    plain.save_pretrained(folder)
    log = folder.parent / "log"
    with vllm_server.served(folder, Config(), KEY, log, "--enable-scale-out") as url:
        yield folder, url
    assert KEY not in log.read_text()


@pytest.fixture
def settings(teacher: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The recipe's settings for the served teacher."""
    monkeypatch.setenv("TEST_TEACHER_KEY", KEY)
    return Settings(base_url=teacher[1], model=vllm_server.NAME, api_key="env:TEST_TEACHER_KEY")


def ask(settings: Settings, group: ReadyGroup) -> list[list[float]]:
    scores = training.score(Own(settings, None), ScoreRequest(group.samples, group.images, bool))
    return [own for own in scores if own is not None]


def test_the_servers_scores_are_those_of_its_weights(teacher, settings, policy, renderer, ranks):
    """Of tokens as they were sampled, after prompts of one screenshot and of two."""
    group = group_of(renderer, 0)
    assert {len(item.images) for item in group.samples} == {1, 2}
    own = boxes_logprobs(Learner(teacher[0], renderer, parse({}).trainer, ranks), renderer, group)
    scores = ask(settings, group)
    assert len(scores) == len(own)
    for mine, theirs in zip(own, scores, strict=True):
        # The trainer's leave out special tokens, which its policy never samples.
        assert mine == pytest.approx(theirs, abs=5e-3)
    assert max(abs(value) for of in own for value in of) > 1


def test_a_teacher_lifts_a_student_without_any_reward(teacher, settings, policy, renderer, ranks, record_property):
    """All advantages are 0: what the student learns it has from the teacher's log-probabilities alone."""
    student = learner_of(policy, renderer, ranks, STUDENT_UPDATES)
    student.optimizer.param_groups[0]["lr"] = 1e-3
    held_out = boxes.played(policy, student, renderer, 5000, 64)
    before = boxes.success_rate(policy, student, renderer), boxes.mean_gap(held_out.samples, ask(settings, held_out))
    for number in range(STEPS):
        group = boxes.played(policy, student, renderer, 1000 + number, ROLLOUTS)
        scored = add_scores(group.samples, ask(settings, group))
        student.learn([msgspec.structs.replace(group, samples=scored)], 0, lambda: False)
    held_out = boxes.played(policy, student, renderer, 6000, 64)
    after = boxes.success_rate(policy, student, renderer), boxes.mean_gap(held_out.samples, ask(settings, held_out))
    assert after[0] > before[0] + 0.1, (before, after)
    assert after[1] < 0.75 * before[1], (before, after)
    record_property("success and reverse KL, before and after", (before, after))
