"""The training process imitates corrected steps beside its batches, and a killed one the same; and taken-over steps."""

import math
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file

from benchmarks.synthetic_groups import BacklogShape, SyntheticBacklog, alter_group
from dart_streams import crash_points
from dart_streams.episodes.trajectory_summary import summarize
from tests.curated_rollouts import curate
from tests.model.test_trainer_kills import kill_at
from tests.model.test_trainer_run import Run, run  # noqa: F401 - a fixture
from topics import curated
from topics.curated import CuratedGroup
from topics.trajectories import Trajectory

FEEDBACK = {"feedback": {"enabled": True, "recent": 1}}
CREDIT = {"feedback": {"enabled": True, "credit_taken_over": True}}
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
    kill_at(killed, [f"{crash_points.AFTER_STEP}:3", f"{crash_points.AFTER_CHECKPOINT}:2"])

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


def ended(made: SyntheticBacklog) -> list[Trajectory]:
    """Return the rollouts of a group as the recorder announces them."""
    summaries = map(summarize, made.observations.values())
    return [
        msgspec.structs.replace(one, group_id="g000000", order_id=f"g000000/{number}/0")
        for number, one in enumerate(summaries)
    ]


def test_what_a_person_took_over_is_imitated_and_the_rest_credited(run):  # noqa: F811
    curation = {"entropy": {"keep": 1.0}}
    ours = run(0, trainer={"groups_per_step": 1, "max_train_steps": 2}, curation=curation, **CREDIT)
    ours.maker.shape = BacklogShape(members=2, lengths=(3, 3))
    unsampled = {"tokens": [], "logprobs": [], "entropies": [], "versions": [], "prompt_sha": ""}
    made = alter_group(ours.maker.group(0), "trajectory-0-1", 2, take_over="f0", **unsampled)
    shown, credited = sorted(curate(ours.config, ended(made)).groups, key=lambda group: not group.feedback)
    assert {one.trajectory_id: one.selected for one in credited.members} == {
        "trajectory-0-0": [0, 1, 2],
        "trajectory-0-1": [0, 2],
    }
    assert (shown.group_id, shown.members[0].selected) == ("take-over-trajectory-0-1", [1])
    ours.publish(curated.TOPIC, shown)
    ours.add([made._replace(group=credited), ours.maker.group(1)])
    assert ours.train() == 0

    first, second = ours.steps()
    assert (first.group_ids, first.feedback) == ([credited.group_id], [shown.group_id])
    assert second.feedback == [shown.group_id], "and again with the next"
    assert (first.metrics["sequences"], first.metrics["imitation_sequences"]) == (5, 1)
    own = [one.taken for steps in made.observations.values() for one in steps if one.taken and not one.taken.take_over]
    assert first.metrics["tokens"] == sum(len(taken.tokens) for taken in own), "a person's have no ratio"
    assert {(one.trajectory_id, one.step) for one in first.top_tokens}.isdisjoint({("trajectory-0-1", 1)})
    assert all(first.metrics.get(name, 0) == 0 for name in ("no_tokens", "missing_step", "updates_not_finite"))
    assert all(math.isfinite(first.metrics[name]) for name in ("loss", "grad_norm", "imitation_nll", "mismatch"))
    assert first.metrics["grad_norm"] > 0
    assert second.metrics["imitation_nll"] < first.metrics["imitation_nll"], "the policy learns what the person did"
    weights = [load_file(file) for file in Path(ours.versions()[-1].parts[-1].uri).glob("*.safetensors")]
    assert weights and all(value.isfinite().all() for part in weights for value in part.values())
