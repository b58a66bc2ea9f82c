"""Ratios of a metric to a baseline's; seconds on a shared machine say little."""


def ratio_to(value: float, baseline: float, digits: int = 2) -> float:
    """Return ``value / baseline``; raise ValueError unless the baseline is positive."""
    if not baseline > 0:
        raise ValueError(f"a baseline of {baseline:g} has no ratio")
    return round(value / baseline, digits)
