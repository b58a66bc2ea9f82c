"""A trainer whose recipe waits for scores from outside."""

import signal
import threading
from typing import Any

import pytest

from plugins.recipes.tests.model.scripted_teacher import ScriptedTeacher, scripted_teacher
from tests.model.test_trainer_run import Run
from tests.waiting import wait_until
from trainer import main
from trainer.data.batch_builder import BatchBuilder
from trainer.learning.learner import Learner


def distilled(services: Any, policy: Any, teacher: ScriptedTeacher, **trainer: Any) -> Run:
    """Return a run of three groups, of which each step takes one."""
    recipe = {"recipe": ["distillation"], "recipes": {"distillation": {"base_url": teacher.url, "model": "teacher"}}}
    settings = {"groups_per_step": 1, "micro_batch": 4, **trainer}
    curation = {"max_staleness": 100}
    run = Run(services.config(**recipe, policy={"path": str(policy)}, trainer=settings, curation=curation))
    run.fill(3)
    return run


def test_a_trainer_that_has_made_its_steps_waits_for_no_further_scores(services, policy, monkeypatch):
    """All groups have come before its step, which is made once it has asked for the next group's scores."""
    with scripted_teacher() as teacher:
        run = distilled(services, policy, teacher, max_train_steps=1)
        teacher.most = sum(len(member.selected) for member in run.maker.group(0).group.members)
        build, learn = BatchBuilder.build, Learner.learn
        monkeypatch.setattr(
            BatchBuilder, "build", lambda one, *of: wait_until(lambda: one.consumer.queued() == 3) and build(one, *of)
        )
        monkeypatch.setattr(Learner, "learn", lambda *of: teacher.held.wait(120) and learn(*of))
        assert main.run(run.config) == 0
        [step] = run.steps()
        assert step.group_ids == ["group-0"] and step.scores is not None


@pytest.mark.parametrize("answered", [0, 1])
def test_a_stop_ends_the_wait_and_no_step_is_made_without_all_scores(services, policy, answered):
    with scripted_teacher() as teacher:
        run = distilled(services, policy, teacher)
        teacher.most = answered

        def stop_once_it_waits() -> None:
            assert teacher.held.wait(120)
            # Handled in this thread, the signal interrupts no wait of the main one: the worst case of a real signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        stopper = threading.Thread(target=stop_once_it_waits)
        stopper.start()
        assert main.run(run.config) == 0
        stopper.join()
        assert run.steps() == []
        assert [version.version for version in run.versions()] == [0]
