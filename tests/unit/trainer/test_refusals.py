"""What a trainer leaves out after weights that were not finite, and when it ends for good."""

from pathlib import Path

import pytest

from dart_streams.config import parse
from trainer import refusals
from trainer.refusals import MAX_REFUSALS, RefusedStep, RefusedSteps, TrainingDiverged, VersionRefused


def refusal(step: int, *groups: str) -> RefusedStep:
    return RefusedStep(train_step=step, group_ids=groups, fault="layer.weight has nan (float32)")


def test_refused_groups_are_left_out_under_the_same_settings(tmp_path: Path) -> None:
    file, config = tmp_path / "checkpoints" / refusals.FILE, parse({})
    found = refusals.read(file, config)
    assert found.group_ids == frozenset()
    found.after(refusal(4, "a", "b")).after(refusal(4, "c")).write(file)
    assert refusals.read(file, config).group_ids == {"a", "b", "c"}
    other = parse({"trainer": {"learning_rate": 1e-9}})
    assert refusals.read(file, other).group_ids == frozenset(), "they are trained after all"
    assert [place.name for place in file.parent.iterdir()] == [refusals.FILE]


@pytest.mark.parametrize("content", [b"", b"{", b'{"settings": 1}', b"\xff", b"[]"])
def test_a_file_that_is_none_of_refusals_leaves_nothing_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / refusals.FILE).write_bytes(content)
    assert refusals.read(tmp_path / refusals.FILE, parse({})).group_ids == frozenset()


def test_a_checkpoint_ends_a_row_of_refusals() -> None:
    found = RefusedSteps(settings="").after(refusal(4, "a")).after(refusal(6, "b"))
    assert found.since(3).group_ids == {"a", "b"}
    assert found.since(4).group_ids == {"b"}
    assert found.since(6).group_ids == frozenset()


def test_refusals_are_retried_without_their_groups_until_the_last(tmp_path: Path) -> None:
    found, errors = RefusedSteps(settings=""), []
    for number in range(MAX_REFUSALS):
        found = found.after(refusal(4, f"group-{number}"))
        errors.append(found.error(tmp_path / refusals.FILE))
    assert [type(error) for error in errors] == [VersionRefused] * (MAX_REFUSALS - 1) + [TrainingDiverged]
    assert "step 4 made weights that are not finite: layer.weight has nan" in str(errors[0])
    assert "without the step's groups (group-0)" in str(errors[0])
    assert str(tmp_path / refusals.FILE) in str(errors[-1])
