"""An agent's state from the topics alone: its logged inputs, applied again in the logged order.

The journal (:mod:`dart_streams.curation.journal`) is quicker, and is what a curator comes back from. This is for when
it is gone: what was published says everything, as long as the topics still hold it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dart_streams.curation.journal import Input, record_of
from dart_streams.curation.reducer import Agent, ReducerResult, advance
from dart_streams.errors import UserError
from topics.curation_log import Applied

Place = tuple[str, int, int]
"""Where a record stands: its topic without prefix, its partition and its offset."""


class MissingInputs(UserError):
    """A state that can't be told from the topics any more."""


class RebuiltState(NamedTuple):
    """A state, and the last inputs and steps before it: whether their decisions were all published is not known.

    ``diverged`` is the first place at which the state was another one when it was logged, None if there is none.
    """

    state: Any
    last: list[tuple[Input, ReducerResult]]
    diverged: Place | None


def rebuild(agent: Agent, entries: Iterable[Applied], inputs: Mapping[Place, Input], last: int) -> RebuiltState:
    """Apply the inputs that ``entries`` name, in their order; an entry that is logged again changes nothing.

    Raises
    ------
    Lost
        If one of the inputs is not there.
    """
    state, diverged = agent.state(), None
    newest: deque[tuple[Input, ReducerResult]] = deque(maxlen=last)
    for entry in entries:
        source = entry.source
        place = (source.topic, source.partition, source.offset)
        read = inputs.get(place)
        if read is None:
            raise MissingInputs(
                f"the {agent.name} agent has lost its journal, and {source.topic}[{source.partition}] no longer holds "
                f"record {source.offset}, which it had applied: start a new run, or restore the changelog topics"
            )
        step = advance(agent, state, record_of(read))
        state = step.state
        if step.applied is None:
            continue
        if step.applied.state_digest != entry.state_digest and diverged is None:
            diverged = place
        newest.append((read, step))
    return RebuiltState(state, list(newest), diverged)
