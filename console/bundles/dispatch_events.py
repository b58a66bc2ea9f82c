"""The events that dispatch's rules remembered in a recorded run, for recipes that learn from it before a run."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from console.bundles.bundle_inputs import config_of, tasks_of
from console.bundles.replay import log_entries, recorded_inputs
from console.runs.bundle import Bundle, BundleError
from dart_streams.bus.codec import Undecodable
from dart_streams.curation import dispatch
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.journal import record_of
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import advance


def dispatch_events(bundle: Bundle) -> Iterator[Any]:
    """Yield each counted finish and each order of a run, as ``remember`` gets them, by replaying dispatch.

    Raises BundleError if the bundle lacks an input.
    """
    config, tasks = config_of(bundle), tasks_of(bundle)
    rules, noted = bind_rules(config), list[Any]()

    def remember(memories: Any, event: Any) -> None:
        noted.append(event)
        rules.remember(memories, event)

    settings = dispatch.DispatchSettings.of(config, tasks)
    [agent] = [agent for agent in bind_agents(config, tasks) if agent.name == dispatch.NAME]
    agent = agent._replace(apply=partial(dispatch.apply, settings=settings, rules=rules._replace(remember=remember)))
    inputs = {source: record for topic in agent.inputs for source, record in recorded_inputs(bundle, topic.name)}
    state = agent.state()
    for entry in log_entries(bundle):
        if entry.agent == dispatch.NAME:
            try:
                state = advance(agent, state, record_of(inputs[entry.source])).state
            except (KeyError, Undecodable):
                raise BundleError(f"{bundle.path} lacks {entry.source}: capture the whole run") from None
            yield from noted
            noted.clear()
