"""MiniWoB++ in a real Chromium keeps the contract of environment backends, whatever its episodes share."""

import pytest

from dart_streams.config import Capture, Isolation
from tests.integration.miniwob_backend import browser, task
from workers.env import conformance

PAGES = ("click-tab", "enter-text", "drag-box")


@pytest.mark.parametrize(
    ("isolation", "capture"),
    [("context", "begin-frame"), ("document", "begin-frame"), ("problem", "begin-frame"), ("problem", "screenshot")],
)
async def test_miniwob_keeps_the_contract(isolation: Isolation, capture: Capture):
    async with browser(isolation=isolation, slots=2, capture=capture) as backend:
        for page in PAGES if isolation != "context" else PAGES[:1]:
            await conformance.check(backend, task(page, 3))
