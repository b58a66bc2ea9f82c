"""The metrics that ``trained`` may carry: each has a name, a unit, a meaning and a group.

Names are part of the contract. Readers show other names, from earlier trainers, under :data:`OTHER`.
"""

from typing import Literal

import msgspec

Better = Literal["up", "down", "neither"]

OTHER = "other"
"""The group of metrics that are not in the table."""

GAP = "Mean absolute gap between log-probabilities of engine and trainer"
PHASE_ENTROPY = "Mean entropy of the policy on the answers of the step's batch"
HEADLINES = ("reward", "loss", "entropy", "grad_norm")
"""Metrics for small displays."""


class TrainingMetric(msgspec.Struct, frozen=True):
    """A metric of an optimizer step. ``better`` is the direction of improvement; ``unit`` may be empty.

    A ``name`` with a slash stands for a family: ``reward/PAGE`` for one metric per page.
    """

    name: str
    unit: str
    better: Better
    group: str
    meaning: str


def metric_rows(group: str, *rows: tuple[str, str, Better, str]) -> tuple[TrainingMetric, ...]:
    """Return the metrics of a group from rows of name, unit, better and meaning."""
    return tuple(TrainingMetric(name, unit, better, group, meaning) for name, unit, better, meaning in rows)


ALL: tuple[TrainingMetric, ...] = (
    *metric_rows(
        "learning",
        ("reward", "", "up", "Mean reward of the batch's rollouts, without those from the pool."),
        ("loss", "", "neither", "Mean loss of the updates: policy loss plus KL term minus entropy bonus."),
        ("first_loss", "", "neither", "Loss of the first update, for steps of several updates."),
        ("entropy", "nats a token", "neither", "Mean entropy of the policy's next-token distribution."),
        ("grad_norm", "", "neither", "Mean gradient norm of the updates, before it is clipped."),
    ),
    *metric_rows(
        "KL and clipping",
        ("kl_reference", "nats a token", "neither", "KL from the initial policy; 0 where trainer.kl_beta is 0."),
        ("clip_share", "share", "neither", "Share of tokens that the objective's clip affects; 0 in a single update."),
        ("ratio", "", "neither", "Mean probability ratio of the policy to the policy at the start of the step."),
        ("truncated_share", "share", "down", "Share of tokens whose importance weight the cap or the mask changes."),
    ),
    *metric_rows(
        "engine and trainer",
        ("same_version_mismatch", "nats a token", "down", f"{GAP} for the same weights."),
        ("mismatch", "nats a token", "down", f"{GAP}; staleness adds to it."),
        ("kl_rollout", "nats a token", "down", "KL of the sampling policy from the policy at the start of the step."),
        ("same_version_tokens", "tokens", "neither", "Mean tokens an update, sampled by the weights before the step."),
    ),
    *metric_rows(
        "imitation",
        ("imitation_nll", "nats a token", "down", "Mean negative log-likelihood of the imitated successes."),
        ("imitation_weight", "", "neither", "Weight of the imitation term in the loss of the first update."),
        ("imitation_sequences", "sequences", "neither", "Answers imitated beside the batch."),
        ("imitation_share", "share", "neither", "Share of imitated tokens in the tokens of batch and imitation."),
        ("sft_updates", "updates", "neither", "Updates of the supervised phase at the end of the step."),
        ("sft_nll", "nats a token", "down", "Mean negative log-likelihood of successes in the supervised phase."),
        ("sft_share", "share", "neither", "Share of the supervised phase in all tokens of the step."),
        ("sft_entropy_before", "nats a token", "neither", f"{PHASE_ENTROPY}, before the supervised phase."),
        ("sft_entropy_after", "nats a token", "neither", f"{PHASE_ENTROPY}, after the supervised phase."),
    ),
    *metric_rows(
        "recipes",
        ("loss_terms", "", "neither", "Additional terms of recipes in the loss; absent without any."),
        ("value_loss", "", "down", "Mean squared error of a critic's values, before it learns from the step."),
        ("explained_variance", "share", "up", "Share of the value targets' variance that a critic explains, if any."),
        ("replayed_sequences", "sequences", "neither", "Answers of earlier batches that were trained with the batch."),
        ("replay_share", "share", "neither", "Share of replayed trajectories in all trained ones."),
    ),
    *metric_rows(
        "batch",
        ("tokens", "tokens", "neither", "Answer tokens in the batch."),
        ("sequences", "sequences", "neither", "Answers in the batch: one for each action that is trained on."),
        ("groups", "groups", "neither", "Rollout groups in the batch."),
        ("updates", "updates", "neither", "Optimizer updates of the step, without those that were skipped."),
        ("rows", "rows", "neither", "Rows that a pass reads: steps whose prompts extend each other share one."),
        ("tokens_computed", "tokens", "down", "Tokens of prompts and answers that a pass computes."),
        ("tokens_distinct", "tokens", "neither", "The same if each rank read each screenshot and each answer once."),
        ("images_encoded", "images", "down", "Images that pass the vision tower in a pass."),
        ("images_distinct", "images", "neither", "Distinct screenshots in the batch, summed over ranks."),
        ("tokens_left_out", "tokens", "neither", "Answer tokens left out to keep to the token budget."),
    ),
    *metric_rows(
        "staleness",
        ("staleness_mean", "versions", "down", "Mean staleness of the groups in the batch."),
        ("staleness_max", "versions", "down", "Largest staleness of a group in the batch."),
        ("stale_groups", "groups", "down", "Groups dropped since the last step because they were too stale."),
        ("staleness/N", "groups", "neither", "Groups in the batch with a staleness of N versions."),
    ),
    *metric_rows(
        "time and memory",
        ("data_wait_ms", "ms", "down", "Time that the trainer waited for groups."),
        ("train_ms", "ms", "down", "Time of all updates of the step."),
        ("idle_share", "share", "down", "Share of waiting in the time of waiting and training."),
        ("tokens_per_s", "tokens/s", "up", "Answer tokens trained on in a second of training."),
        ("rss_mb", "MiB", "down", "Resident memory of the first trainer process."),
    ),
    *metric_rows(
        "publishing",
        ("publish_ms", "ms", "down", "Time to write and announce the weight version."),
        ("publish_bytes", "bytes", "down", "Size of the tensors written for the weight version."),
        ("weights_changed_share", "share", "neither", "Share of weight values that differ from the version before."),
        ("checkpoint_ms", "ms", "down", "Time to write the checkpoint, in steps that write one."),
    ),
    *metric_rows(
        "left out",
        ("updates_not_finite", "updates", "down", "Updates skipped because their gradient was not finite."),
        ("not_finite_groups", "groups", "down", "Groups left out since the last step: gradient or weights not finite."),
        ("missing_step", "actions", "down", "Actions left out because the store lacks their observations."),
        ("missing_blob", "actions", "down", "Actions left out because the store lacks a screenshot."),
        ("prompt_mismatch", "actions", "down", "Actions left out because the trainer renders another prompt."),
        ("broken_record", "actions", "down", "Actions left out because their record contradicts itself."),
        ("no_tokens", "actions", "down", "Actions left out because the endpoint returned no tokens."),
        ("cut_distribution", "actions", "down", "Actions left out because sampling cut the distribution."),
        ("unusable_image", "actions", "down", "Actions left out because a screenshot cannot be used."),
    ),
    *metric_rows(
        "reward by page",
        ("reward/PAGE", "", "up", "Mean reward of the batch's rollouts on one page, without those from the pool."),
    ),
)
BY_NAME: dict[str, TrainingMetric] = {one.name: one for one in ALL}
FAMILIES: dict[str, TrainingMetric] = {one.name.partition("/")[0]: one for one in ALL if "/" in one.name}


def find(name: str) -> TrainingMetric | None:
    """Return the metric or the family of a published name; None if the table lacks it."""
    family, slash, _ = name.partition("/")
    return FAMILIES.get(family) if slash else BY_NAME.get(name)
