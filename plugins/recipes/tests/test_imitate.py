"""Self-imitation as shipped: each step imitates past successes of the policy, once there are enough."""

from plugins.recipes.tests.agents import played, recipe_config
from trainer.data.successes import SuccessMemory, history_limit, successes_of
from trainer.hooks import StepStart, bind_training
from trainer.learning.imitation import plan_imitation


def test_each_batch_has_past_successes_beside_it_once_there_are_enough():
    config = recipe_config("imitate", curation={"dispatch": {"choice": "even"}})
    settings, memory, rules = config.trainer, SuccessMemory(), bind_training(config)
    trained, size, past, on = played(config, rounds=3000).trainer.trained, settings.groups_per_step, set(), []
    for number, start in enumerate(range(0, len(trained), size), start=1):
        made = plan_imitation(memory, settings, rules, {}, StepStart(number, config.curation.dispatch.seed))
        drawn = [member.trajectory_id for group in made.beside for member in group.members]
        wanted = settings.imitate.trajectories
        assert len(set(drawn)) == len(drawn) == (wanted if len(past) >= wanted else 0)
        assert set(drawn) <= past
        assert made.phase == []
        on.append(bool(drawn))
        batch = trained[start : start + size]
        memory = memory.after_step(batch, history_limit(settings))
        past |= {success.trajectory_id for success in successes_of(batch)}
    assert sum(on) > len(on) / 2
