"""Which rows a model scores as it scores samples alone, by a probe of the unsharded model."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
import torch
from torch import Tensor

from dart_streams.errors import UserError
from dart_streams.policy import probe
from dart_streams.policy.rendering import Renderer
from topics.values import MessagePart
from trainer.data.collate import Collator
from trainer.data.rows import RowBuilder, RowKinds
from trainer.data.samples import TrainingSample
from trainer.learning.model import Scorer

log = structlog.get_logger()

PROBE_ANSWERS = (probe.ANSWER, f"{probe.ANSWER} {probe.ANSWER}", "wait()")
MAX_DIFFERENCE = 1e-3
"""Maximum difference of a token's log-probability in a row with others (nats)."""
EXTENDED, MASKED = RowKinds(extended=True), RowKinds(masked=True)


def find_kinds(scorer: Scorer, renderer: Renderer) -> RowKinds:
    """Return the kinds of rows that ``scorer`` supports; it is not sharded yet, as FSDP would gather parameters.

    Answers beside each other need full attention that accepts a given mask. The probe's prompts are short, so sliding
    windows are read from the configuration.
    """
    steps, images = probe_steps(renderer)
    if len(RowBuilder(EXTENDED, renderer.placeholder).build(steps)) == len(steps):
        log.info("each step is a row of its own", reason="the chat template does not repeat an answer as it was")
    extended = scores_equally(scorer, renderer, EXTENDED, steps, images)
    if not has_full_attention(scorer.policy.config.get_text_config()):
        log.info("answers do not share a prompt", reason="not all layers have full attention")
        return RowKinds(extended)
    siblings = [msgspec.structs.replace(steps[0], answer=renderer.answer_tokens(text)) for text in PROBE_ANSWERS]
    return RowKinds(extended, scores_equally(scorer, renderer, MASKED, siblings, images))


def split_head(scorer: Scorer, renderer: Renderer, tokens: int) -> None:
    """Set the chunks of the output layer; raise UserError if the model does more to its logits than that layer."""
    if not tokens:
        return
    steps, images = probe_steps(renderer)
    whole = answer_scores(scorer, Collator(renderer), steps, images)
    scorer.head_tokens = tokens
    try:
        chunks = answer_scores(scorer, Collator(renderer), steps, images)
        same = find_difference(whole, chunks) <= MAX_DIFFERENCE
    except (AttributeError, TypeError, ValueError, RuntimeError):
        same = False
    if not same:
        raise UserError(
            f"trainer.head_tokens = {tokens}: the logits of {type(scorer.policy).__name__} are not those of its output "
            "layer on its last hidden states: set it to 0"
        )


def find_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest difference of two lists of scores."""
    return max(float((one_A - other_A).abs().max()) for one_A, other_A in zip(one, other, strict=True))


def probe_steps(renderer: Renderer) -> tuple[list[TrainingSample], Mapping[str, bytes]]:
    """Return two steps of a trajectory with the probe's screen, and the screens."""
    turns = probe.probe_turns()
    later = [*turns, MessagePart(role="assistant", text=probe.ANSWER), turns[-1]]
    steps = []
    for number, shown in enumerate((turns, later)):
        prompt = renderer.prompt(shown)
        answer = renderer.answer_tokens(probe.ANSWER)
        steps.append(TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer, step=number))
    return steps, {steps[0].images[0].sha256: probe.draw_screen()}


def scores_equally(
    scorer: Scorer, renderer: Renderer, kinds: RowKinds, items: Sequence[TrainingSample], images: Mapping[str, bytes]
) -> bool:
    """Return whether samples in rows of ``kinds`` score as they do alone; log why they do not."""
    try:
        alone, together = (answer_scores(scorer, Collator(renderer, of), items, images) for of in (RowKinds(), kinds))
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        log.info("samples do not share rows", kinds=kinds._asdict(), reason=f"{type(error).__name__}: {error}")
        return False
    most = find_difference(alone, together)
    if not most <= MAX_DIFFERENCE:
        log.info("samples do not share rows", kinds=kinds._asdict(), difference=most, allowed=MAX_DIFFERENCE)
        return False
    return True


def answer_scores(
    scorer: Scorer, collator: Collator, items: Sequence[TrainingSample], images: Mapping[str, bytes]
) -> list[Tensor]:
    """Return the log-probabilities (A,) of each sample's tokens."""
    batch = collator.collate(items, images).to(scorer.forbidden_V.device)
    with torch.no_grad():
        logp_BA, _ = scorer(batch)
    return [logp_A[present_A].cpu() for logp_A, present_A in zip(logp_BA, batch.present_BA, strict=True)]


def has_full_attention(text: Any) -> bool:
    """Return whether every layer attends to all earlier tokens."""
    kinds = getattr(text, "layer_types", None)
    return all(kind == "full_attention" for kind in kinds) if kinds else not getattr(text, "sliding_window", None)
