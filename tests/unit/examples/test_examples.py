"""The examples are run as they stand; those of other environments are in tests/integration and tests/model."""

import random
import re

from examples import curation_rule, minimal_env


def test_an_environment_of_ones_own_plays_in_the_in_memory_circle(capsys):
    random.seed(1)
    minimal_env.main()
    said = capsys.readouterr().out
    successes, rollouts, groups, versions = map(int, re.findall(r"\d+", said))
    assert rollouts >= 200 and groups >= 8 * versions >= 8
    # Three tries at one column of four succeed with 1 - (3/4)^3 = 58 %.
    assert 0.4 < successes / rollouts < 0.75


def test_the_rule_drops_what_it_says_and_nothing_else():
    without, ruled = curation_rule.play(rule=False), curation_rule.play(rule=True)
    assert max(group.mean for group in without) > curation_rule.HIGHEST_MEAN
    assert ruled and max(group.mean for group in ruled) <= curation_rule.HIGHEST_MEAN


def test_a_group_at_the_bound_is_kept():
    group = next(iter(curation_rule.play(rule=False, rollouts=200)))
    assert curation_rule.is_informative(type(group)(**{**as_dict(group), "mean": curation_rule.HIGHEST_MEAN}))
    assert not curation_rule.is_informative(type(group)(**{**as_dict(group), "mean": 0.81}))


def as_dict(group):
    return {name: getattr(group, name) for name in group.__struct_fields__}
