"""The term of the loss: reverse KL to the teacher a token, beside the objective.

A token's advantage is -(log student - log teacher), at the weights that begin the step. Its mean over the policy's own
tokens is the negative reverse KL. The term is ``-weight * importance weight * ratio * advantage``, where the ratio of
new to old has the gradient.
"""

from typing import Any

from dart_recipes.distillation.teacher import ask_teacher
from dart_streams.curation.hooks import Own
from trainer.data.scores import ScoreRequest
from trainer.hooks import LossInputs, TrainingRules


def score(own: Own, request: ScoreRequest) -> list[list[float] | None]:
    """Return the teacher's log-probabilities of the policy's own answers (nats)."""
    return ask_teacher(own.settings, request)


def reverse_kl(own: Own, inputs: LossInputs) -> Any:
    """Return the term of a micro-batch, a scalar tensor, over the tokens that the teacher scored."""
    from trainer.objective import aggregate_values, clamp_log_ratio, mask_values

    scored_BA, bound = inputs.batch.scored_BA & inputs.mask_BA, own.settings.bound
    gap_BA = mask_values(inputs.batch.scores_BA - inputs.old_logp_BA, scored_BA).clamp(-bound, bound)
    ratio_BA = clamp_log_ratio(inputs.new_logp_BA - inputs.old_logp_BA, scored_BA).exp()
    values_BA = mask_values(-inputs.weight_BA * ratio_BA * gap_BA, scored_BA)
    aggregate = inputs.settings.aggregate or "tokens"
    return own.settings.weight * aggregate_values(values_BA, inputs.mask_BA, aggregate) / inputs.total


RULES = TrainingRules(score=score, terms=reverse_kl)
