"""The training process imitates corrected steps beside its batches, and a killed one the same."""

import msgspec
import pytest

from tests.model.test_trainer_run import Run, run, train_with_kills  # noqa: F401 - a fixture
from topics import curated
from topics.curated import CuratedGroup

FEEDBACK = {"feedback": {"enabled": True, "recent": 1}}
CLICK = "click(start_box='(3,4)')"


def correction_of(group: CuratedGroup, number: int) -> CuratedGroup:
    """Return a correction of the first step of a group's first member."""
    [first, *_] = group.members
    changes = {"source": "pool", "selected": [0], "advantage": 1.0, "version_min": None, "version_max": None}
    member = msgspec.structs.replace(first, corrections=[CLICK], step_advantages=[], **changes)
    said = f"said{number}"
    return msgspec.structs.replace(group, group_id=f"feedback-{said}", members=[member], feedback=[said])


def fill(made: Run) -> None:
    """Add four groups of rollouts, with a correction before the second and before the fourth."""
    backlog = [made.maker.group(index) for index in range(4)]
    for index, added in enumerate(backlog):
        made.add([added])
        if index in (0, 2):
            made.publish(curated.TOPIC, correction_of(added.group, index))


def test_corrections_are_imitated_beside_batches_and_after_kills(run):  # noqa: F811
    trainer = {"groups_per_step": 1, "max_train_steps": 4}
    undisturbed, killed = run(0, trainer=trainer, **FEEDBACK), run(0, trainer=trainer, **FEEDBACK)
    fill(undisturbed)
    fill(killed)
    assert undisturbed.train() == 0
    train_with_kills(killed)

    steps = undisturbed.steps()
    assert [step.feedback for step in steps] == [
        [],
        ["feedback-said0"],
        ["feedback-said0"],
        ["feedback-said2", "feedback-said0"],
    ]
    assert [step.group_ids for step in steps] == [[f"group-{number}"] for number in range(4)]
    assert [event.groups_consumed for event in undisturbed.versions()] == list(range(5)), "feedback takes no place"
    assert ["imitation_nll" in step.metrics for step in steps] == [False, True, True, True]
    assert steps[2].metrics["imitation_nll"] < steps[1].metrics["imitation_nll"], "the policy learns the correction"

    again = killed.steps()
    assert [step.feedback for step in again] == [step.feedback for step in steps]
    for name in ("loss", "imitation_nll"):
        expected = [step.metrics.get(name, 0.0) for step in steps]
        assert [step.metrics.get(name, 0.0) for step in again] == pytest.approx(expected, abs=1e-5), name
