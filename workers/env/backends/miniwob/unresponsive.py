"""Notices a browser that answers nothing any more: stopped, or blocked for ever. Its pipes stay open meanwhile.

A call of a page that hangs is its own affair and takes until its time-out, so a late call alone says nothing. If the
browser has sent nothing for a while though it owes an answer, its process itself is asked, and looked at: one that
neither answers, nor computes, nor waits for a processor is lost.
"""

import asyncio
from collections.abc import Callable

from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.process_load import ProcessLoad, rests

SILENT_S = 1.0
"""How long the browser may owe an answer, and send nothing, until it is asked."""
POLL_INTERVAL_S = 0.5
"""Between two looks at its process."""
LOOKS = 2
"""Looks in a row that find it at rest, while it does not answer, after which it is lost."""
QUESTION = "Browser.getVersion"
"""Answered by the browser's own process, whatever its pages do."""


async def end_when_silent(devtools: DevTools, load: Callable[[], ProcessLoad]) -> None:
    """Close the connection once the browser is lost; ``load`` is that of its own process, without its children."""
    while not devtools.closed:
        await asyncio.sleep(POLL_INTERVAL_S)
        if devtools.silent_s > SILENT_S and await never_answers(devtools, load):
            await devtools.close("the browser stands still")


async def never_answers(devtools: DevTools, load: Callable[[], ProcessLoad]) -> bool:
    """Ask the browser; return whether it will never answer."""
    if devtools.closed:
        return False
    answer = devtools.send(QUESTION)
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    before, at_rest = await asyncio.to_thread(load), 0
    while not (await asyncio.wait({answer}, timeout=POLL_INTERVAL_S))[0]:
        now = await asyncio.to_thread(load)
        at_rest = at_rest + 1 if rests(before, now) else 0
        if at_rest >= LOOKS:
            return True
        before = now
    return False
