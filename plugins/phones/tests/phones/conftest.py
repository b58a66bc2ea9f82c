"""Phones for the tests of this folder, which need `make phone`."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dart_phones import process
from dart_phones.backend import PhoneBackend
from dart_streams.config import Config, Env, Phone
from dart_streams.java import SHARED_JARS, jar_folder


@pytest.fixture(autouse=True, scope="session")
def installed():
    """Skip without the jars, which are 350 MB; phones have the priority of the tests that wait for them."""
    if not jar_folder("phone", SHARED_JARS).is_dir():
        pytest.skip("no phones are installed here: make phone")
    before, process.NICE = process.NICE, 0
    yield
    process.NICE = before


def config(call_timeout_s: float = 300.0, calls: bool = False) -> Config:
    """A configuration with two slots, whose calls may take long: tests run on machines that do other things."""
    return Config(env=Env(backend="phone", slots=2, phone=Phone(call_timeout_s=call_timeout_s, calls=calls)))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backend() -> AsyncIterator[PhoneBackend]:
    """A backend for the tests that do its phones no harm."""
    made = PhoneBackend(config(calls=True))
    await made.start()
    yield made
    await made.stop()
