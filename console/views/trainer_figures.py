"""The trainer's figures of a report, from the metrics of its optimizer steps. Pure."""

from typing import Any

from console.views.optional_numbers import mean_and_max, mean_or_none, median_or_none, round_optional
from dart_streams.config import Trainer


def trainer_fields(settings: Trainer, inside: list[dict[str, float]], circle_s: float) -> dict[str, Any]:
    """Return the trainer's figures from the metrics of the steps ``inside`` the training phase of ``circle_s``.

    ``mismatch`` is the gap between the log-probabilities of engine and trainer for the same weights (nats a token),
    ``drift`` the gap to the trained weights. ``kl_reference`` is the divergence from the initial policy (nats a token),
    null without ``trainer.kl_beta``. Figures of the objective leave out supervised steps.
    """
    learned = [row for row in inside if not row.get("supervised")]
    same_version = [row for row in inside if row.get("same_version_tokens")]
    busy_ms = sum(row.get(part, 0.0) for row in inside for part in ("train_ms", "publish_ms", "checkpoint_ms"))
    return {
        "idle_share": round_optional(1 - busy_ms / (circle_s * 1000)) if busy_ms and circle_s else None,
        "train_ms": round_optional(median_or_none(metric_column(inside, "train_ms")), 1),
        "publish_ms": round_optional(median_or_none(metric_column(inside, "publish_ms")), 1),
        "mismatch": mean_and_max(metric_column(same_version, "same_version_mismatch")),
        "drift": mean_and_max(metric_column(learned, "mismatch")),
        "objective": {
            "name": settings.objective,
            "clip_low": settings.clip_low,
            "clip_high": settings.clip_high,
            "kl_beta": settings.kl_beta,
        },
        "updates": int(sum(updates)) if (updates := metric_column(inside, "updates")) else None,
        "clip_share": mean_and_max(metric_column(learned, "clip_share")),
        "truncated_share": mean_and_max(metric_column(learned, "truncated_share")),
        "kl_reference": mean_and_max(metric_column(learned, "kl_reference")) if settings.kl_beta else None,
        "stale_groups": int(sum(metric_column(inside, "stale_groups"))),
        "not_finite_groups": int(sum(metric_column(inside, "not_finite_groups"))),
        "updates_not_finite": int(sum(metric_column(inside, "updates_not_finite"))),
        "imitation": imitation_fields(inside),
        "computed": computed_fields(inside),
    }


def computed_fields(rows: list[dict[str, float]]) -> dict[str, Any] | None:
    """Return what a pass over all steps computes, and what of it is distinct; None in runs that did not count it."""
    counts = {
        name: int(sum(metric_column(rows, name)))
        for name in ("rows", "tokens_computed", "tokens_distinct", "images_encoded", "images_distinct")
    }
    if not counts["tokens_distinct"]:
        return None
    return {
        **counts,
        "tokens_per_distinct": round(counts["tokens_computed"] / counts["tokens_distinct"], 3),
        "images_per_distinct": round_optional(
            counts["images_encoded"] / counts["images_distinct"] if counts["images_distinct"] else None, 3
        ),
    }


def imitation_fields(rows: list[dict[str, float]]) -> dict[str, Any] | None:
    """Return the figures of imitation beside the batches and in supervised phases; None without imitation.

    ``share`` is the share of imitated tokens; ``nll`` is in nats a token, of the first and the last such step.
    """
    beside, phases = metric_column(rows, "imitation_nll"), metric_column(rows, "sft_nll")
    if not beside and not phases:
        return None
    return {
        "steps": len(beside),
        "weight": round_optional(mean_or_none(metric_column(rows, "imitation_weight"))),
        "share": round_optional(mean_or_none(metric_column(rows, "imitation_share"))),
        "nll": {"first": round_optional(beside[0]), "last": round_optional(beside[-1])} if beside else None,
        "phases": {"steps": len(phases), "updates": int(sum(metric_column(rows, "sft_updates")))},
    }


def metric_column(rows: list[dict[str, float]], name: str) -> list[float]:
    """Return the values of a metric in the rows that have it."""
    return [row[name] for row in rows if name in row]
