"""Each objective has its own clip bounds; those of another are refused when the configuration is read."""

import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from console.runs.run_folder import without_nulls
from dart_streams.config import Config, Trainer, load, parse
from dart_streams.config.clip_bounds import CLIP_BOUNDS, SEQUENCE_MOST
from dart_streams.errors import ConfigError


def bounds(**trainer: object) -> tuple[float | None, float | None]:
    settings = parse({"trainer": trainer}).trainer
    return settings.clip_low, settings.clip_high


def test_bounds_left_out_are_the_objectives_own():
    assert bounds() == bounds(objective="ppo") == (0.2, 0.28)
    assert bounds(objective="gspo") == (3e-4, 4e-4)
    assert bounds(objective="cispo") == (1.0, 0.28), "no ratio is below 1 - 1"
    assert bounds(clip_high=0.4) == (0.2, 0.4)
    assert set(CLIP_BOUNDS) == set(get_args(get_type_hints(Trainer)["objective"]))


@pytest.mark.parametrize(
    ("trainer", "error"),
    [
        ({"objective": "gspo", "clip_low": 0.2}, r"clip_low = 0\.2 does not fit .*'gspo'.*0 to 0\.01.*own, 0\.0003"),
        ({"objective": "gspo", "clip_high": 0.28}, r"clip_high = 0\.28 does not fit .*'gspo'.*own, 0\.0004"),
        ({"objective": "cispo", "clip_low": 0.2}, r"clip_low = 0\.2 does not fit .*'cispo'.*from above only"),
        ({"objective": "cispo", "clip_high": 4e-4}, r"clip_high = 0\.0004 does not fit .*'cispo'.*at least 0\.01"),
        ({"clip_low": 3e-4}, r"clip_low = 0\.0003 does not fit .*'ppo'.*at least 0\.01"),
        ({"objective": "dppo_tv", "clip_low": 3e-4}, r"clip_low = 0\.0003 does not fit .*'dppo_tv'.*0\.01 to 1"),
        ({"objective": "dppo_kl", "clip_high": 3e-4}, r"clip_high = 0\.0003 does not fit .*'dppo_kl'.*least 0\.001"),
        ({"clip_high": float("nan")}, r"clip_high"),
    ],
)
def test_bounds_of_another_objective_are_refused_with_what_fits(trainer: dict[str, object], error: str):
    with pytest.raises(ConfigError, match=rf"trainer.*{error}"):
        parse({"trainer": trainer})


@given(
    st.sampled_from(sorted(CLIP_BOUNDS)),
    st.none() | st.floats(0, 10),
    st.none() | st.floats(0, 10),
    st.sampled_from(sorted(CLIP_BOUNDS)),
)
def test_what_is_read_is_resolved_reads_again_as_the_same(
    objective: str, low: float | None, high: float | None, other: str
):
    given_bounds: dict[str, object] = {"correction": "none"}  # Without it DPPO's objectives are refused.
    given_bounds |= {name: value for name, value in (("clip_low", low), ("clip_high", high)) if value is not None}
    try:
        config = parse({"trainer": {"objective": objective, **given_bounds}})
    except ConfigError:
        return
    tables = without_nulls(msgspec.to_builtins(config))
    assert tables["trainer"]["clip_low"] is not None
    assert tables["trainer"]["clip_high"] is not None
    assert parse(tables) == config
    # All bounds but the very one that both may have.
    kinds = {objective == "gspo", other == "gspo"}
    if len(kinds) == 2 and tables["trainer"]["clip_high"] != SEQUENCE_MOST:
        with pytest.raises(ConfigError, match="does not fit"):
            parse({"trainer": {**tables["trainer"], "objective": other}})


def test_a_resolved_file_of_each_objective_is_read_as_it_was_written(tmp_path: Path):
    for objective in CLIP_BOUNDS:
        config = parse({"trainer": {"objective": objective, "correction": "none"}})
        tables = without_nulls(msgspec.to_builtins(config))
        file = tmp_path / f"{objective}.toml"
        file.write_text(tomli_w.dumps(tables))
        assert load(file) == load(file, recorded=True) == config
        assert tomllib.loads(file.read_text())["trainer"]["clip_low"] == CLIP_BOUNDS[objective].low.default
    assert Config().trainer.clip_low == 0.2
