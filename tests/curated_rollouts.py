"""What the data manager makes of ended rollouts, by its own agents."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.curation_world import task_set
from dart_streams.config import Config
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.reducer import InputRecord, advance
from topics import curated, trajectories
from topics.curated import CuratedGroup
from topics.trajectories import Trajectory


class Curation(NamedTuple):
    """Groups to train on, in the agents' order, and the last state of each agent by name."""

    groups: list[CuratedGroup]
    states: dict[str, Any]


def curate(config: Config, ended: Sequence[Trajectory]) -> Curation:
    """Apply rollouts to each agent that reads them."""
    made = Curation([], {})
    for agent in bind_agents(config, task_set(1)):
        state = agent.state()
        for offset, one in enumerate(ended if trajectories.TOPIC in agent.inputs else []):
            result = advance(agent, state, InputRecord("trajectories", 0, offset, one))
            assert not result.refused, result.refused
            state = result.state
            made.groups.extend(found.event for found in result.decisions if found.topic is curated.TOPIC)
        made.states[agent.name] = state
    return made
