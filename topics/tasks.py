"""tasks: tasks that programs or models have made, each with a checker of its own."""

from typing import Annotated

import msgspec
from msgspec import Meta

from topics.topic import Topic
from topics.values import Name, Steps

MOST_DOCUMENT = 2**18
"""Characters of a page."""
MOST_ACTIONS = 200
MOST_ACTION = 512
"""Characters of an action."""


class ProposedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that joins the run's tasks once a check has shown that it can be solved, and is not solved already.

    ``task_id`` is ``environment/page#seed``; ``max_steps`` bounds its episodes, and ``maker`` is who made it.
    ``document`` is the HTML of its page, with a global ``task`` as pages of your own have it; without one the page is
    one that the environment knows. ``solution`` has the actions that solve it, in pixels of the screen; without one
    the environment's oracle solves it. Both are omitted where they are empty.
    """

    task_id: Name
    max_steps: Steps
    maker: Name
    document: Annotated[str, Meta(max_length=MOST_DOCUMENT)] = ""
    solution: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MOST_ACTION)]], Meta(max_length=MOST_ACTIONS)
    ] = []


TOPIC = Topic(name="tasks", event=ProposedTask, key="task_id", shortest_ms=None)
