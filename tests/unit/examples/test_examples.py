"""The examples are run as they stand; those of other environments are in tests/integration and tests/model."""

import random
import re

from examples import minimal_env


def test_an_environment_of_ones_own_plays_in_the_in_memory_circle(capsys):
    random.seed(1)
    minimal_env.main()
    said = capsys.readouterr().out
    successes, rollouts, groups, versions = map(int, re.findall(r"\d+", said))
    assert rollouts >= 200 and groups >= 8 * versions >= 8
    # Three tries at one column of four succeed with 1 - (3/4)^3 = 58 %.
    assert 0.4 < successes / rollouts < 0.75
