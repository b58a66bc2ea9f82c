"""A figure against a baseline's. Benchmarks compare within one run; seconds on a shared machine say little alone."""


def ratio_to(value: float, baseline: float, digits: int = 2) -> float:
    """Return how many times ``baseline`` a figure is.

    Raises
    ------
    ValueError
        If the baseline is nothing, or less: no ratio to it means anything.
    """
    if not baseline > 0:
        raise ValueError(f"a baseline of {baseline:g}: measure one that is more than nothing")
    return round(value / baseline, digits)
