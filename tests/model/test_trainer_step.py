"""One optimizer step against plain transformers and torch, and over two ranks against one."""

import copy
import dataclasses
import io
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
import structlog
import torch
from PIL import Image
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText

from benchmarks.synthetic_groups import Maker, SyntheticBacklog
from dart_streams.config import Config, parse
from dart_streams.policy import probe
from dart_streams.policy.rendering import Prompt, Renderer
from tests.model import plain_transformers
from topics.values import VersionSpan
from trainer.data.collate import UNBOUNDED, Collator, MicroBatch, pack
from trainer.data.rows import RowKinds
from trainer.data.samples import ReadyGroup, TrainingSample, select
from trainer.data.successes import sft_group, successes_of
from trainer.learning import learner as learner_module
from trainer.learning import minibatches, step
from trainer.learning import model as model_module
from trainer.learning.learner import Learner
from trainer.learning.model import load
from trainer.learning.step import Stopped, batch_loss
from trainer.learning.supported_rows import MASKED, find_kinds, has_full_attention
from trainer.learning.top_tokens import KEPT_TOKENS
from trainer.ranks import Ranks


@pytest.fixture
def new_learner(policy: Path, renderer: Renderer, ranks: Ranks) -> Callable[[dict[str, Any]], Learner]:
    return lambda settings: Learner(policy, renderer, parse({"trainer": settings}).trainer, ranks)


def ready(made: SyntheticBacklog, renderer: Renderer) -> ReadyGroup:
    limits = Config().policy
    group = made.group
    selection = select(group, group.members, made.observations, renderer, limits)
    return ReadyGroup(group=group, samples=selection.samples, images=made.blobs, refused=selection.refused, read_ms=0.0)


def group_of(renderer: Renderer, index: int) -> ReadyGroup:
    return ready(Maker(Config(), renderer).group(index), renderer)


def scores_of(scorer: torch.nn.Module, collator: Collator, group: ReadyGroup) -> list[torch.Tensor]:
    """Return the log-probabilities (A,) of each of a group's answers, scored in one micro-batch, without gradient."""
    batch = collator.collate(group.samples, group.images)
    with torch.no_grad():
        logp_BA, _ = scorer(batch)
    return [logp_A[present_A] for logp_A, present_A in zip(logp_BA, batch.present_BA, strict=True)]


class Gradients(NamedTuple):
    of: dict[str, torch.Tensor]
    micro_batches: int
    metrics: dict[str, float]


def full(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def plain_logp(
    plain: torch.nn.Module, renderer: Renderer, item: TrainingSample, images: dict[str, bytes]
) -> torch.Tensor:
    """Return a sample's token log-probabilities (A,)."""
    return plain_distributions(plain, renderer, item, images).gather(1, torch.tensor(item.answer)[:, None]).squeeze(1)


def plain_distributions(
    plain: torch.nn.Module, renderer: Renderer, item: TrainingSample, images: dict[str, bytes]
) -> torch.Tensor:
    """Return log-probabilities (A, V), the shortest way through transformers: one sequence, unpadded."""
    shown = [Image.open(io.BytesIO(images[ref.sha256])).convert("RGB") for ref in item.images]
    prompt = Prompt(token_ids=item.prompt, images=item.images, sha="")
    inputs = plain_transformers.training_inputs(renderer, prompt, shown, item.answer)
    start = inputs.pop("answer_start")
    batch = {name: tensor[None] if tensor.dim() == 1 else tensor for name, tensor in inputs.items()}
    logits = plain(**batch, use_cache=False).logits[0, start - 1 : -1].float() / item.temperature
    return logits.masked_fill(~renderer.allowed_mask(logits.shape[-1]), -torch.inf).log_softmax(-1)


def test_a_padded_batch_scores_answers_as_plain_transformers_does(policy, renderer):
    group = group_of(renderer, 0)
    assert {len(item.images) for item in group.samples} == {1, 2}, "both prompt lengths are in the batch"
    scorer, collator = load(policy, renderer, torch.device("cpu")), Collator(renderer)
    batch = collator.collate(group.samples, group.images)
    with torch.no_grad():
        _, entropy_BA = scorer(batch)
        plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
        for item, scored in zip(group.samples, scores_of(scorer, collator, group), strict=True):
            expected = plain_logp(plain, renderer, item, group.images)
            torch.testing.assert_close(scored, expected, rtol=1e-4, atol=2e-5)
    assert (entropy_BA[batch.mask_BA] > 0).all()


def test_an_image_that_many_prompts_show_passes_the_vision_tower_once(renderer):
    group = group_of(renderer, 0)
    first = [item for item in group.samples if item.step == 0]
    batch = Collator(renderer).collate(first, group.images)
    assert len(first) == 4
    assert len(batch.counts_I) == 1
    assert batch.shown_S.tolist() == [0] * 4


def test_one_step_is_that_of_plain_transformers_and_torch(policy, renderer, ranks):
    config = parse({"trainer": {"micro_batch": 3, "grad_clip": 0.5}})
    group = ready(Maker(config, renderer).group(1), renderer)
    learner = Learner(policy, renderer, config.trainer, ranks)
    learned = learner.learn([group], 0, lambda: False)

    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=config.trainer.learning_rate, weight_decay=0.0)
    tokens = sum(len(item.answer) for item in group.samples)
    total = torch.zeros(())
    for item in group.samples:
        logp = plain_logp(plain, renderer, item, group.images)
        weight = torch.exp(logp.detach() - torch.tensor(item.logprobs)).clamp(max=config.trainer.truncate.cap)
        loss = -(weight * item.advantage * torch.exp(logp - logp.detach())).sum() / tokens
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    optimizer.step()

    assert learned.tokens == tokens
    assert learned.metrics["loss"] == pytest.approx(total.item(), abs=1e-6)
    assert learned.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    stepped = learner.weights()
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(stepped[name], expected, rtol=0, atol=config.trainer.learning_rate * 0.05)


def likelihood_of(
    plain: torch.nn.Module, renderer: Renderer, group: ReadyGroup, weight: float = 1.0
) -> tuple[torch.Tensor, int]:
    """Return ``weight`` times the mean negative log-likelihood of a group's answers, and their tokens."""
    tokens = sum(len(item.answer) for item in group.samples)
    total = sum((plain_logp(plain, renderer, item, group.images).sum() for item in group.samples), torch.zeros(()))
    return -weight * total / tokens, tokens


def policy_loss_of(plain: torch.nn.Module, renderer: Renderer, group: ReadyGroup, cap: float) -> torch.Tensor:
    """Return the loss of a step's first update on a group."""
    tokens = sum(len(item.answer) for item in group.samples)
    total = torch.zeros(())
    for item in group.samples:
        logp = plain_logp(plain, renderer, item, group.images)
        weight = torch.exp(logp.detach() - torch.tensor(item.logprobs)).clamp(max=cap)
        total = total - (weight * item.advantage * torch.exp(logp - logp.detach())).sum() / tokens
    return total


def imitable(maker: Maker, index: int, renderer: Renderer) -> ReadyGroup:
    """Return a made-up group as one to imitate."""
    made = maker.group(index)
    group = sft_group("imitate-000001", successes_of([made.group]))
    assert group.members
    return ready(made._replace(group=group), renderer)


def assert_stepped(learner: Learner, plain: torch.nn.Module) -> None:
    """Check weights against those of plain torch: but where a gradient is nothing but rounding, as is Adam's step."""
    stepped, rate = learner.weights(), learner.settings.learning_rate
    off = torch.cat([(stepped[name] - value).abs().flatten() for name, value in plain.state_dict().items()])
    assert (off > rate * 0.05).float().mean() < 1e-4


def test_a_supervised_update_is_that_of_plain_transformers(policy, renderer, ranks):
    settings = {"micro_batch": 3, "grad_clip": 0.5, "minibatches": 2, "epochs": 2, "kl_beta": 0.1, "objective": "gspo"}
    config = parse({"trainer": settings})
    group = imitable(Maker(config, renderer), 1, renderer)
    learner = Learner(policy, renderer, config.trainer, ranks)
    made = learner.imitate([group])

    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=config.trainer.learning_rate, weight_decay=0.0)
    loss, tokens = likelihood_of(plain, renderer, group)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    optimizer.step()
    assert made is not None
    assert made.tokens == tokens
    assert made.nll == pytest.approx(loss.item(), rel=1e-4)
    assert made.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert_stepped(learner, plain)


def test_the_mean_entropy_is_that_of_plain_transformers(policy, renderer, ranks):
    config = parse({"trainer": {"micro_batch": 2}})
    group = imitable(Maker(config, renderer), 1, renderer)
    learner = Learner(policy, renderer, config.trainer, ranks)
    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    with torch.no_grad():
        logp = torch.cat([plain_distributions(plain, renderer, item, group.images) for item in group.samples])
    entropies = -(logp.exp() * logp.masked_fill(logp.isinf(), 0.0)).sum(-1)
    assert learner.mean_entropy([group]) == pytest.approx(entropies.mean().item(), rel=1e-4)
    assert math.isnan(learner.mean_entropy([]))


def test_imitation_beside_a_batch_is_that_of_plain_transformers_and_torch(policy, renderer, ranks):
    """The gradient is that of the policy loss plus ``weight`` times that of the mean negative log-likelihood."""
    weight = 0.3
    imitate = {"trajectories": 1, "weight": weight}
    config = parse({"trainer": {"micro_batch": 3, "grad_clip": 0.5, "imitate": imitate}})
    maker = Maker(config, renderer)
    group, past = ready(maker.group(1), renderer), imitable(maker, 2, renderer)
    learner = Learner(policy, renderer, config.trainer, ranks)
    learned = learner.learn([group], 0, lambda: False, [past])

    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=config.trainer.learning_rate, weight_decay=0.0)
    loss = policy_loss_of(plain, renderer, group, config.trainer.truncate.cap)
    imitation, tokens = likelihood_of(plain, renderer, past, weight)
    (loss + imitation).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    optimizer.step()

    assert learned.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert learned.metrics["loss"] == pytest.approx(loss.item(), abs=1e-6), "the batch's own loss, as without imitation"
    assert learned.metrics["imitation_nll"] == pytest.approx(imitation.item() / weight, rel=1e-4)
    assert learned.metrics["imitation_weight"] == weight
    assert learned.metrics["imitation_sequences"] == len(past.samples)
    assert learned.metrics["imitation_share"] == pytest.approx(tokens / (tokens + learned.tokens))
    assert_stepped(learner, plain)


def test_of_several_updates_the_first_imitates(policy, renderer, ranks):
    settings = {"minibatches": 2, "epochs": 2, "micro_batch": 3, "imitate": {"trajectories": 1}}
    config = parse({"trainer": settings})
    maker = Maker(config, renderer)
    group, past = ready(maker.group(1), renderer), imitable(maker, 2, renderer)
    learner = Learner(policy, renderer, config.trainer, ranks)
    alone = Learner(policy, renderer, config.trainer, ranks).learn([group], 0, lambda: False)
    learned = learner.learn([group], 0, lambda: False, [past])
    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    with torch.no_grad():
        before, _ = likelihood_of(plain, renderer, past)
    assert learned.metrics["imitation_nll"] == pytest.approx(before.item(), rel=1e-4), "of the weights at the start"
    assert learned.metrics["grad_norm"] != pytest.approx(alone.metrics["grad_norm"], rel=1e-3)


def test_nothing_to_imitate_leaves_the_step_as_it_was(new_learner, renderer):
    group = group_of(renderer, 1)
    unreadable = msgspec.structs.replace(group, samples=[])
    learned = [
        new_learner({"imitate": {"trajectories": 1}}).learn([group], 0, lambda: False, imitated).metrics
        for imitated in ([], [unreadable])
    ]
    assert learned[0] == learned[1]
    assert not any(name.startswith("imitation") for name in learned[0])


def test_a_step_stopped_while_it_imitates_changes_nothing(new_learner, renderer):
    maker = Maker(Config(), renderer)
    learner = new_learner({"micro_batch": 50, "imitate": {"trajectories": 1}})
    before = copy.deepcopy(dict(learner.weights()))
    looks = iter([False, True])
    with pytest.raises(Stopped):
        learner.learn([ready(maker.group(0), renderer)], 0, lambda: next(looks), [imitable(maker, 1, renderer)])
    assert all(torch.equal(before[name], value) for name, value in learner.weights().items())
    assert all(parameter.grad is None for parameter in learner.scorer.parameters())


def test_several_updates_of_a_batch_are_those_of_plain_torch(policy, renderer, ranks):
    """PPO: the ratio is to the policy before the first update; each minibatch, drawn at random, has its own mean."""
    size, rate = 3, 1e-3
    settings = {"micro_batch": size, "minibatches": 2, "epochs": 2, "grad_clip": 0.5, "learning_rate": rate}
    config = parse({"trainer": settings})
    group = ready(Maker(config, renderer).group(1), renderer)
    learned = Learner(policy, renderer, config.trainer, ranks)
    result = learned.learn([group], 0, lambda: False)
    assert result.updated

    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=rate, weight_decay=0.0)
    with torch.no_grad():
        old = [plain_logp(plain, renderer, item, group.images) for item in group.samples]
    parts = minibatches.split([group], minibatches.shuffle_keys([group], 0), 2, 0)
    drawn = [[group.samples.index(item) for item in part.samples] for [part] in parts]
    assert sorted(drawn[0] + drawn[1]) == list(range(len(group.samples)))
    clipped = 0
    for _ in range(2):
        for piece in drawn:
            tokens = sum(len(group.samples[index].answer) for index in piece)
            for index in piece:
                item = group.samples[index]
                ratio = (plain_logp(plain, renderer, item, group.images) - old[index]).exp()
                weight = (old[index] - torch.tensor(item.logprobs)).exp().clamp(max=config.trainer.truncate.cap)
                bounded = ratio.clamp(0.8, 1.28)
                clipped += int(((ratio * item.advantage) > (bounded * item.advantage)).sum())
                (-(weight * torch.minimum(ratio * item.advantage, bounded * item.advantage)).sum() / tokens).backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert clipped, "the clip is part of what is compared"
    assert result.metrics["clip_share"] > 0
    assert result.updates == 4
    stepped = learned.weights()
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(stepped[name], expected, rtol=0, atol=4 * rate * 0.1)


def test_a_step_with_few_sequences_warns_and_updates_once_for_each(new_learner, renderer):
    """However they are packed: a single micro-batch holds all of them."""
    group = group_of(renderer, 0)
    learner = new_learner({"micro_batch": 50, "minibatches": 100, "learning_rate": 1e-5})
    with structlog.testing.capture_logs() as logs:
        learned = learner.learn([group], 0, lambda: False)
    assert learned.updates == len({(item.trajectory_id, item.window) for item in group.samples}) > 1
    [warned] = [line for line in logs if line["log_level"] == "warning"]
    assert warned["reason"] == "the step has too few sequences"
    assert (warned["minibatches"], warned["updates"]) == (100, learned.updates)


def of_lengths(group: ReadyGroup, renderer: Renderer, answers: list[str]) -> ReadyGroup:
    """Return the first samples of a group with these answers, as if an engine had drawn them."""
    samples = []
    for item, text in zip(group.samples, answers, strict=False):
        tokens = renderer.answer_tokens(text)
        spans = [VersionSpan(version=0, start=0, end=len(tokens))]
        samples.append(msgspec.structs.replace(item, answer=tokens, logprobs=[-0.5] * len(tokens), versions=spans))
    return msgspec.structs.replace(group, samples=samples)


@pytest.mark.parametrize("aggregate", ["tokens", "sequences"])
def test_the_first_gradient_is_of_the_mean_over_tokens_or_answers(policy, renderer, ranks, aggregate):
    config = parse({"trainer": {"aggregate": aggregate, "micro_batch": 2, "learning_rate": 0.0, "grad_clip": 1e9}})
    made = ready(Maker(config, renderer).group(0), renderer)
    group = of_lengths(made, renderer, ["click(start_box='(84,120)')", "wait()", "type(content='a b')"])
    answers = group.samples
    learned = Learner(policy, renderer, config.trainer, ranks).learn([group], 0, lambda: False)
    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    tokens = sum(len(item.answer) for item in answers)
    assert tokens != len(answers) * len(answers[0].answer)
    for item in answers:
        logp = plain_logp(plain, renderer, item, group.images)
        weight = (logp.detach() - torch.tensor(item.logprobs)).exp().clamp(max=config.trainer.truncate.cap)
        share = tokens if aggregate == "tokens" else len(answers) * len(item.answer)
        (-(weight * item.advantage * torch.exp(logp - logp.detach())).sum() / share).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9)
    assert learned.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)


@pytest.mark.parametrize("objective", ["ppo", "gspo", "cispo"])
def test_padding_does_not_change_gradients_with_kl_and_entropy(policy, renderer, ranks, objective):
    """Padding is never sampled, so its log-probability is -inf. After an update the KL has a gradient too."""
    made = group_of(renderer, 0)
    group = of_lengths(made, renderer, ["click(start_box='(84,120)')", "wait()", "type(content='a b')", "wait()"])
    assert len({len(item.answer) for item in group.samples}) > 1
    settings = {"objective": objective, "kl_beta": 0.1, "entropy_coef": 0.01, "learning_rate": 1e-3}
    learner = Learner(policy, renderer, parse({"trainer": settings}).trainer, ranks)
    for _ in range(2):
        learned = learner.learn([group], 0, lambda: False)
        assert learned.updated
        assert all(math.isfinite(value) for value in learned.metrics.values())
    assert learned.metrics["kl_reference"] > 0
    sequences = learner.settings.aggregate == "sequences"
    total = float(len(group.samples) if sequences else sum(len(item.answer) for item in group.samples))
    found = []
    for size in (50, 1):
        pieces = learner.collator.pieces([group], size, 10**6)
        batches = learner.collator.batches([group], pieces, len(pieces))
        arguments = (learner.settings, 0, total, ranks, lambda: False, learner.reference)
        sums = step.accumulate(learner.scorer, batches, None, *arguments)
        gradients = {name: full(parameter.grad) for name, parameter in learner.scorer.named_parameters()}
        learner.optimizer.zero_grad(set_to_none=True)
        found.append((sums, gradients))
    (padded, padded_gradients), (alone, alone_gradients) = found
    assert padded == pytest.approx(alone, rel=1e-4, abs=1e-5)
    for name, gradient in alone_gradients.items():
        assert torch.isfinite(gradient).all()
        assert (padded_gradients[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def test_float_noise_is_not_counted_as_truncated(new_learner, renderer):
    """The engine's log-probabilities are the trainer's own, but in another packing: equal weights, other rounding."""
    group = group_of(renderer, 0)
    learner = new_learner({})
    with torch.no_grad():
        for row, item in enumerate(group.samples):
            logp_BA, _ = learner.scorer(learner.collator.collate([item], group.images))
            group.samples[row] = msgspec.structs.replace(item, logprobs=logp_BA[0].tolist())
    learned = learner.learn([group], 0, lambda: False)
    assert learned.metrics["mismatch"] > 0, "there is noise"
    assert learned.metrics["truncated_share"] == 0


def test_a_step_is_not_stopped_between_its_updates(new_learner, renderer):
    learner = new_learner({"micro_batch": 50, "epochs": 3})
    looks = iter([False, False])
    learned = learner.learn([group_of(renderer, 0)], 0, lambda: next(looks, True))
    assert learned.updated


def gradients(policy: Path, renderer: Renderer, ranks: Ranks, groups: list[ReadyGroup], **settings: int) -> Gradients:
    """Return the gradient of one step, before it is clipped, how many micro-batches it was made of, and its figures."""
    config = parse({"trainer": {"grad_clip": 1e9, **settings}})
    learner = Learner(policy, renderer, config.trainer, ranks)
    learner.collator.pass_tokens = UNBOUNDED  # As on a GPU: one micro-batch if the bounds allow it.
    pieces = learner.collator.pieces(groups, config.trainer.micro_batch, config.trainer.micro_batch_tokens)
    tokens = float(sum(len(item.answer) for group in groups for item in group.samples))
    batches = learner.collator.batches(groups, pieces, len(pieces))
    sums = step.accumulate(learner.scorer, batches, None, config.trainer, 0, tokens, ranks, lambda: False)
    found = {name: full(parameter.grad) for name, parameter in learner.scorer.named_parameters()}
    return Gradients(found, len(pieces), step.mean_metrics(sums, 1))


def test_the_gradient_does_not_depend_on_how_micro_batches_are_packed(policy, renderer, ranks):
    groups = [group_of(renderer, index) for index in range(2)]
    whole = gradients(policy, renderer, ranks, groups, micro_batch=50)
    assert whole.micro_batches == 1
    counted = gradients(policy, renderer, ranks, groups, micro_batch=2)
    budgets = [gradients(policy, renderer, ranks, groups, micro_batch=50, micro_batch_tokens=n) for n in (600, 300, 1)]
    samples = sum(len(group.samples) for group in groups)
    assert 1 < budgets[0].micro_batches < budgets[1].micro_batches < budgets[2].micro_batches < samples
    for other in (counted, *budgets):
        for name, gradient in whole.of.items():
            assert (other.of[name] - gradient).norm() <= 1e-4 * gradient.norm(), name
        assert other.metrics == pytest.approx(whole.metrics, rel=1e-4, abs=1e-6)


def uneven(group: ReadyGroup, renderer: Renderer) -> ReadyGroup:
    """Return a group whose answers are of many lengths, to prompts of one and of two screens."""
    texts = ["wait()", "Action: click(start_box='(84,120)')", "Thought: the button is grey.\nAction: wait()"]
    samples = []
    for number, item in enumerate(group.samples):
        answer = renderer.answer_tokens(texts[number % len(texts)])
        samples.append(msgspec.structs.replace(item, answer=answer, logprobs=[-1.0] * len(answer), versions=[]))
    return msgspec.structs.replace(group, samples=samples)


def test_answers_that_share_a_prompt_score_as_if_each_were_alone(policy, renderer):
    group = uneven(group_of(renderer, 0), renderer)
    samples = [msgspec.structs.replace(item, advantage=float(place)) for place, item in enumerate(group.samples)]
    assert len({len(item.answer) for item in samples}) == 3
    scorer = load(policy, renderer, torch.device("cpu"))
    batch = Collator(renderer, MASKED).collate(samples, group.images)
    assert len(batch.input_ids_RL) < len(samples) == len(batch.answers_BA)
    with torch.no_grad():
        scored = [part_BA.tolist() for part_BA in scorer(batch)]
        for row, place in enumerate(batch.advantage_B1[:, 0].int().tolist()):
            assert batch.answers_BA[row, : len(samples[place].answer)].tolist() == samples[place].answer
            alone = scorer(Collator(renderer).collate([samples[place]], group.images))
            for found, expected_BA in zip(scored, alone, strict=True):
                expected = expected_BA[0].tolist()
                assert found[row][: len(expected)] == pytest.approx(expected, abs=2e-5)


def test_a_shared_prompt_without_screen_has_several_temperatures(policy, renderer):
    texts = {"wait()": 1.0, "Action: click(start_box='(84,120)')": 0.5, "x": 2.0}
    prompt = renderer.answer_tokens("Click the button")
    samples = [
        TrainingSample(prompt=prompt, answer=renderer.answer_tokens(text), temperature=temperature)
        for text, temperature in texts.items()
    ]
    scorer = load(policy, renderer, torch.device("cpu"))
    with torch.no_grad():
        shared_BA, _ = scorer(Collator(renderer, MASKED).collate(samples, {}))
        for row, item in enumerate(samples):
            alone_BA, _ = scorer(Collator(renderer).collate([item], {}))
            torch.testing.assert_close(shared_BA[row, : len(item.answer)], alone_BA[0], rtol=1e-4, atol=2e-5)


def test_the_gradient_does_not_depend_on_whether_answers_share_a_prompt(policy, renderer, ranks, monkeypatch):
    groups = [uneven(group_of(renderer, index), renderer) for index in range(2)]
    shared = gradients(policy, renderer, ranks, groups, micro_batch=3)
    monkeypatch.setattr(learner_module.supported_rows, "find_kinds", lambda *_: RowKinds())
    alone = gradients(policy, renderer, ranks, groups, micro_batch=3)
    assert shared.micro_batches < alone.micro_batches
    for name, gradient in alone.of.items():
        assert (shared.of[name] - gradient).norm() <= 1e-4 * gradient.norm(), name
    assert shared.metrics == pytest.approx(alone.metrics, rel=1e-4, abs=1e-6)


def test_answers_longer_together_than_the_budget_are_split(renderer):
    group = uneven(group_of(renderer, 0), renderer)
    collator = Collator(renderer, MASKED)
    for budget in (120, 160, 400):
        with structlog.testing.capture_logs() as logs:
            pieces = collator.pieces([group], 50, budget)
        longest = max(len(batch.input_ids_RL[0]) for batch in collator.batches([group], pieces, len(pieces)))
        assert [(line["row"] > budget, line["bound"]) for line in logs] == [(True, budget)] * (longest > budget)
        assert sorted(item.trajectory_id for piece in pieces for item in piece) == sorted(
            item.trajectory_id for item in group.samples
        )
        for batch in collator.batches([group], pieces, len(pieces)):
            assert batch.input_ids_RL.numel() <= budget or len(batch.places) == 1


def test_attention_without_custom_masks_does_not_share_prompts(policy, renderer, monkeypatch):
    scorer = load(policy, renderer, torch.device("cpu"))
    assert find_kinds(scorer, renderer).masked
    whole = model_module.branch_attention

    def everything_before(batch: MicroBatch) -> torch.Tensor:
        return whole(dataclasses.replace(batch, branch_RL=torch.zeros_like(batch.branch_RL)))

    monkeypatch.setattr(model_module, "branch_attention", everything_before)
    assert not find_kinds(scorer, renderer).masked, "answers attend to each other"

    def no_mask(_: MicroBatch) -> torch.Tensor:
        raise ValueError("this attention takes no mask of 4 dimensions")

    monkeypatch.setattr(model_module, "branch_attention", no_mask)
    assert not find_kinds(scorer, renderer).masked


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ({"layer_types": ["full_attention", "full_attention"], "sliding_window": 4096}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"layer_types": ["linear_attention", "full_attention"]}, False),
        ({"sliding_window": 4096}, False),
        ({"sliding_window": None}, True),
        ({}, True),
    ],
)
def test_a_window_longer_than_the_probe_is_known_from_the_configuration(text, full):
    assert has_full_attention(SimpleNamespace(**text)) is full


def test_no_micro_batch_is_larger_than_its_budget_of_tokens(renderer):
    groups = [group_of(renderer, index) for index in range(3)]
    collator = Collator(renderer)
    for budget in (400, 800):
        sizes = []
        for batch in collator.batches(groups, pieces := collator.pieces(groups, 50, budget), len(pieces)):
            assert batch.input_ids_RL.numel() <= budget
            sizes.append(len(batch.input_ids_RL))
        assert sum(sizes) == sum(len(group.samples) for group in groups)
        assert max(sizes) > 1


@pytest.mark.parametrize("objective", ["ppo", "gspo", "cispo"])
def test_the_first_update_of_a_step_is_the_same_by_every_objective(new_learner, renderer, objective):
    """All ratios are 1 then. In a second epoch they are not, and the objectives differ."""
    group = group_of(renderer, 1)
    figures = {}
    for name in ("ppo", objective):
        for epochs in (1, 2):
            learner = new_learner({"objective": name, "epochs": epochs, "learning_rate": 1e-3})
            learned = learner.learn([group], 0, lambda: False)
            figures[name, epochs] = learned.metrics["grad_norm"]
    assert figures[objective, 1] == pytest.approx(figures["ppo", 1], rel=1e-4)
    assert (figures[objective, 2] == pytest.approx(figures["ppo", 2], rel=1e-4)) == (objective == "ppo")


def test_a_step_that_is_stopped_changes_nothing(new_learner, renderer):
    learner = new_learner({"micro_batch": 2})
    before = copy.deepcopy(dict(learner.weights()))
    looks = iter([False, False, True])
    with pytest.raises(Stopped):
        learner.learn([group_of(renderer, 0)], 0, lambda: next(looks))
    assert all(torch.equal(before[name], value) for name, value in learner.weights().items())
    assert all(parameter.grad is None for parameter in learner.scorer.parameters())


def test_a_gradient_that_is_not_finite_changes_nothing(policy, renderer, ranks):
    config = Config()
    learner = Learner(policy, renderer, config.trainer, ranks)
    before = copy.deepcopy(dict(learner.weights()))
    group = ready(Maker(config, renderer).group(0), renderer)
    for item in group.samples:
        item.logprobs[0] = float("nan")  # type: ignore[index]
    assert not learner.learn([group], 0, lambda: False).updated
    assert all(torch.equal(before[name], value) for name, value in learner.weights().items())


def test_tokens_of_the_same_version_measure_engine_against_trainer(policy, renderer):
    group = ready(Maker(Config(), renderer).group(0, version=4), renderer)
    scorer = load(policy, renderer, torch.device("cpu"))
    collator = Collator(renderer)
    with torch.no_grad():
        scores = scores_of(scorer, collator, group)
        for row, item in enumerate(group.samples):
            exact = (scores[row] + 0.25).tolist()
            group.samples[row] = msgspec.structs.replace(item, logprobs=exact)
        _, same = batch_loss(scorer, collator.collate(group.samples, group.images), None, Config().trainer, 4, 1.0)
        _, other = batch_loss(scorer, collator.collate(group.samples, group.images), None, Config().trainer, 5, 1.0)
    assert same.same_difference / same.same_version == pytest.approx(0.25, abs=1e-5)
    assert other.same_version == 0
    assert same.truncated == 0
    assert same.difference / same.corrected == pytest.approx(0.25, abs=1e-5)


def test_tokens_of_a_member_from_the_pool_have_the_weight_one(policy, renderer):
    made = Maker(Config(), renderer).group(1)
    stored, *online = made.group.members
    members = [msgspec.structs.replace(stored, source="pool"), *online]
    group = ready(made._replace(group=msgspec.structs.replace(made.group, members=members)), renderer)
    assert {item.trajectory_id for item in group.samples if item.logprobs is None} == {stored.trajectory_id}
    weighed = [msgspec.structs.replace(stored, source="pool", as_online=True), *online]
    as_online = ready(made._replace(group=msgspec.structs.replace(made.group, members=weighed)), renderer)
    assert as_online.samples == ready(made, renderer).samples, "its log-probabilities weigh its steps"
    scorer, collator = load(policy, renderer, torch.device("cpu")), Collator(renderer)
    tokens = sum(len(item.answer) for item in group.samples)
    with torch.no_grad():
        scores = scores_of(scorer, collator, group)
        for row, item in enumerate(group.samples):
            if item.logprobs is not None:
                surer = (scores[row] + 1.0).tolist()
                group.samples[row] = msgspec.structs.replace(item, logprobs=surer)
        loss, _ = batch_loss(scorer, collator.collate(group.samples, group.images), None, Config().trainer, 0, tokens)
    weights = [1.0 if item.logprobs is None else 0.3679 for item in group.samples]
    parts = [weight * item.advantage * len(item.answer) for weight, item in zip(weights, group.samples, strict=True)]
    assert loss.item() == pytest.approx(-sum(parts) / tokens, abs=1e-4)


def test_tokens_generated_across_a_switch_count_for_their_version(policy, renderer):
    """The engine's log-probabilities are off by 0.25 nats before the switch and by 0.5 after it."""
    group = group_of(renderer, 0)
    scorer = load(policy, renderer, torch.device("cpu"))
    collator, cut = Collator(renderer), 1
    with torch.no_grad():
        scores = scores_of(scorer, collator, group)
        for row, item in enumerate(group.samples):
            length = len(item.answer)
            off = torch.tensor([0.25] * cut + [0.5] * (length - cut))
            segments = [VersionSpan(version=4, start=0, end=cut), VersionSpan(version=5, start=cut, end=length)]
            exact = (scores[row] + off).tolist()
            group.samples[row] = msgspec.structs.replace(item, logprobs=exact, versions=segments)
        batch = collator.collate(group.samples, group.images)
        found = {version: batch_loss(scorer, batch, None, Config().trainer, version, 1.0)[1] for version in (4, 5)}
    tokens = sum(len(item.answer) for item in group.samples)
    before = cut * len(group.samples)
    assert [found[version].same_version for version in (4, 5)] == [before, tokens - before]
    assert found[4].same_difference / before == pytest.approx(0.25, abs=1e-5)
    assert found[5].same_difference / (tokens - before) == pytest.approx(0.5, abs=1e-5)
    mean = (0.25 * before + 0.5 * (tokens - before)) / tokens
    assert found[5].difference / found[5].corrected == pytest.approx(mean, abs=1e-5), "every token is corrected for"


def test_the_kl_to_a_frozen_reference_starts_at_zero(new_learner, renderer):
    learner = new_learner({"kl_beta": 0.1, "learning_rate": 1e-3})
    group = group_of(renderer, 0)
    divergence = [learner.learn([group], 0, lambda: False).metrics["kl_reference"] for _ in range(3)]
    assert divergence[0] == pytest.approx(0.0, abs=1e-9)
    assert min(divergence[1:]) > 0
    assert learner.reference is not None
    assert all(not parameter.requires_grad for parameter in learner.reference.parameters())


def test_recomputed_activations_give_the_same_step(new_learner, renderer):
    learned = []
    for recompute in (False, True):
        group = group_of(renderer, 0)
        learned.append(new_learner({"recompute": recompute}).learn([group], 0, lambda: False).metrics)
    assert learned[1] == pytest.approx(learned[0], rel=1e-4, abs=1e-6)


def test_layers_in_half_precision_leave_the_weights_in_full(new_learner, renderer):
    norms = []
    for dtype in ("float32", "bfloat16"):
        learner = new_learner({"dtype": dtype})
        group = group_of(renderer, 0)
        norms.append(learner.learn([group], 0, lambda: False).metrics["grad_norm"])
        assert {value.dtype for value in learner.weights().values()} == {torch.float32}
    assert norms[1] == pytest.approx(norms[0], rel=0.1)
    assert norms[1] != norms[0]


def test_a_version_has_the_probe_of_plain_transformers(new_learner, policy, renderer):
    learner = new_learner({"learning_rate": 1e-3})
    first = learner.snapshot().probe
    learner.learn([group_of(renderer, 0)], 0, lambda: False)
    release = learner.snapshot()
    plain = AutoModelForImageTextToText.from_pretrained(policy)
    plain.load_state_dict(dict(release.tensors))
    assert probe.mean_mismatch(plain_transformers.measured(plain, renderer), release.probe.logprobs) < 1e-5
    assert probe.mean_mismatch(first, release.probe.logprobs) > 1e-3, "the step changed what it says"


def test_top_tokens_have_the_largest_logit_gradients(policy, renderer, ranks):
    """Against the logits' own gradients, one answer at a time, by plain autograd on the scorer's log-probabilities."""
    group = group_of(renderer, 0)
    far = group.samples[1]
    assert far.logprobs is not None
    moved = msgspec.structs.replace(far, logprobs=[*far.logprobs[:2], far.logprobs[2] - 30.0, *far.logprobs[3:]])
    group = msgspec.structs.replace(group, samples=[group.samples[0], moved, *group.samples[2:]])
    settings = msgspec.structs.replace(Config().trainer, correction="none")
    learner = Learner(policy, renderer, settings, ranks)
    parts: dict[tuple[str, int, int], float] = {}
    ratios: dict[tuple[str, int, int], float] = {}
    for item in group.samples:
        with torch.no_grad():
            logp_BA, _ = learner.scorer(learner.collator.collate([item], group.images))
        for index, logp in enumerate(logp_BA[0, : len(item.answer)].tolist()):
            place = (item.trajectory_id, item.step, index)
            parts[place] = abs(item.advantage) * (1 - math.exp(logp))
            assert item.logprobs is not None
            ratios[place] = logp - item.logprobs[index]
    learned = learner.learn([group], 0, lambda: False)
    found = {(one.trajectory_id, one.step, one.index): one for one in learned.top_tokens}
    assert len(found) == len(learned.top_tokens) <= 2 * KEPT_TOKENS
    best = sorted(parts.values(), reverse=True)[:KEPT_TOKENS]
    for place, one in found.items():
        assert one.gradient_share == pytest.approx(parts[place] / sum(parts.values()), rel=1e-3)
        assert one.log_ratio == pytest.approx(ratios[place], abs=1e-3)
    shares = sorted((one.gradient_share for one in found.values()), reverse=True)[:KEPT_TOKENS]
    assert shares == pytest.approx([part / sum(parts.values()) for part in best], rel=1e-3)
    widest = max(ratios, key=lambda place: abs(ratios[place]))
    assert widest == (moved.trajectory_id, moved.step, 2)
    assert widest in found, "the token on which engine and trainer were made to differ"


def test_long_rows_are_passes_of_their_own():
    items = ["a", "b", "c", "d", "e"]
    lengths = [900, 1100, 300, 300, 1025]
    assert list(pack(items, lengths, 9, 10_000, long_row=1024)) == [["a"], ["b"], ["c", "d"], ["e"]]
    assert list(pack(items, lengths, 9, 10_000)) == [items]


def test_another_pass_is_made_where_it_saves_more_than_it_costs():
    items, lengths = ["a", "b", "c", "d"], [400, 390, 100, 90]
    assert list(pack(items, lengths, 9, 10_000, pass_tokens=128)) == [["a", "b"], ["c", "d"]]
    assert list(pack(items, lengths, 9, 10_000, pass_tokens=1024)) == [items]
    assert list(pack(items, lengths, 3, 10_000)) == [["a", "b"], ["c", "d"]], "as few passes, and less padding"
    assert list(pack(items, lengths, 9, 500)) == [["a"], ["b"], ["c", "d"]]
    assert list(pack([], [], 9, 500)) == []
