"""Calls of a page that leaves its document meanwhile: rejected or never answered, by a browser that a script plays."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.clockwork import by_clockwork
from tests.unit.workers.env.backends.miniwob.test_begin_frames import ScriptedBrowser
from workers.env.backends.miniwob import devtools
from workers.env.backends.miniwob.devtools import INPUTS, LEFT, NAVIGATED, QUESTIONS, DevTools, Navigated, Rejected
from workers.env.environment import EnvironmentFault

OTHER_FRAME = {"id": "inner", "parentId": "main"}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(devtools, "LEFT_S", 0.05)


def leaving(times: int, leave: Callable[[ScriptedBrowser, int], None]) -> DevTools:
    """Return the connection to a browser whose page leaves during ``count`` calls, and answers the next one."""
    calls = 0

    def answer(browser: ScriptedBrowser, call: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal calls
        calls += 1
        if calls > times:
            return {"answered": calls}
        leave(browser, call["id"])
        return None

    browser = ScriptedBrowser(answer)
    return DevTools(browser.reader, browser, 60.0)


def navigate(browser: ScriptedBrowser, number: int, session: str = "page", **frame: str) -> None:
    """Give the page another document, and leave the call without an answer."""
    browser.feed({"method": NAVIGATED, "sessionId": session, "params": {"frame": {"id": "main", **frame}}})


def reject(message: str) -> Callable[[ScriptedBrowser, int], None]:
    return lambda browser, number: browser.feed({"id": number, "error": {"code": -32000, "message": message}})


@pytest.mark.parametrize("leave", [navigate, *map(reject, LEFT)])
@pytest.mark.parametrize("method", sorted(QUESTIONS))
async def test_a_question_is_asked_again_of_the_next_document(method, leave):
    connection = leaving(2, leave)
    assert await connection.call(method, "page") == {"answered": 3}
    assert connection.silent_s == 0.0


@pytest.mark.parametrize("leave", [navigate, reject(LEFT[0])])
@pytest.mark.parametrize("method", sorted(INPUTS))
async def test_an_input_event_is_not_repeated(method, leave):
    assert await leaving(1, leave).call(method, "page") == {}


async def test_an_answer_that_comes_after_the_navigation_counts():
    def answer_late(browser: ScriptedBrowser, number: int) -> None:
        navigate(browser, number)
        browser.feed({"id": number, "result": {"answered": 0}})

    assert await leaving(1, answer_late).call("Page.captureScreenshot", "page") == {"answered": 0}


@by_clockwork
async def test_a_page_that_leaves_again_and_again_is_a_fault_that_says_so():
    with pytest.raises(EnvironmentFault, match=r"no answer within 0.2 s: the page left its document \(\d+ times\)"):
        await leaving(1000, reject(LEFT[0])).call("Runtime.evaluate", "page", 0.2)


@pytest.mark.parametrize(
    "leave",
    [
        lambda browser, number: navigate(browser, number, session="other"),
        lambda browser, number: navigate(browser, number, **OTHER_FRAME),
    ],
    ids=["another page", "a frame in the page"],
)
async def test_what_another_document_does_is_no_navigation_of_the_page(leave):
    with pytest.raises(EnvironmentFault, match=r"no answer within 0.2 s$"):
        await leaving(1, leave).call("Runtime.evaluate", "page", 0.2)


async def test_another_call_is_not_repeated():
    with pytest.raises(Navigated):
        await leaving(1, reject(LEFT[0])).call("Page.navigate", "page")
    with pytest.raises(Rejected):
        await leaving(1, reject("Internal error")).call("Page.captureScreenshot", "page")


async def test_an_answer_of_a_million_values_ends_the_connection():
    """Each takes 70 bytes and a third of a microsecond, in the loop of all slots."""
    browser = ScriptedBrowser(lambda *_: {"values": [[]] * 10**6})
    with pytest.raises(EnvironmentFault, match="the browser is gone"):
        await DevTools(browser.reader, browser, 60.0).call("Runtime.evaluate", "page")
