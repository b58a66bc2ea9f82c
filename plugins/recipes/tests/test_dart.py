"""DART's own settings."""

from plugins.recipes.tests.agents import groups_in, played, recipe_config


def test_dart_has_the_settings_of_the_paper():
    config = recipe_config("dart")
    trainer, curation = config.trainer, config.curation
    assert (trainer.kl_beta, trainer.clip_low, trainer.clip_high, trainer.truncate.cap) == (0.1, 0.2, 0.28, 1.0)
    assert (trainer.objective, trainer.aggregate) == ("ppo", "sequences"), "a mean over answers, as in the release"
    assert (curation.budget.base, curation.budget.threshold, curation.entropy.keep) == (8, 0.6, 0.8)
    assert curation.length.dynamic and curation.pool.enabled and curation.dispatch.choice == "even"
    made = groups_in(played(config))
    assert {len(group.members) for group in made} != {curation.budget.base}, "fewer rollouts of easier tasks"
