"""Desktops prepared ahead of their episodes."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dart_desktops.desktop import pool
from dart_desktops.desktop.backend import DesktopBackend
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_streams.config import Config, Desktop, Env
from plugins.desktops.tests.test_desktop import inside, task
from workers.env import conformance

pytestmark = pytest.mark.usefixtures("desktops_of_normal_priority")


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[DesktopBackend]:
    """A backend with two slots and two spares."""
    desktop = Desktop(spares=2, call_timeout_s=300.0)
    made = DesktopBackend(Config(env=Env(backend="desktop", slots=2, desktop=desktop)))
    yield made
    await made.stop()


async def prepared(backend: DesktopBackend) -> None:
    """Wait until all that is expected is prepared."""
    await asyncio.gather(*(spare.preparation for spare in backend.spares._spares))


async def first_reset(backend: DesktopBackend, family: str, seed: int) -> tuple[DesktopEnvironment, conformance.Screen]:
    chosen = task(family, seed)
    environment = await backend.open(chosen)
    return environment, await environment.reset(chosen)


async def test_a_prepared_desktop_is_handed_over_as_it_would_have_been_reset(backend):
    one, start = await first_reset(backend, "edit", 1)
    backend.expect(task("edit", 1))
    await prepared(backend)
    [spare] = backend.spares._spares
    display = inside(spare.preparation.result(), "Xvfb")
    other, handed_over = await first_reset(backend, "edit", 1)
    assert inside(other.sandbox, "Xvfb") == display, "a reset was done, which starts the display anew"
    assert conformance.same_screen(handed_over, start)
    assert other.sandbox is not one.sandbox
    assert await other.evaluate() == 0
    assert await conformance.solve(other, task("edit", 1))
    assert await other.evaluate() == 1
    assert conformance.same_screen(await other.reset(task("edit", 1)), start), "a second reset is one"
    await one.close()
    await other.close()


async def test_only_the_task_that_was_expected_is_given_a_prepared_desktop(backend):
    backend.expect(task("answer", 1))
    await prepared(backend)
    [spare] = backend.spares._spares
    other, _ = await first_reset(backend, "answer", 2)
    wanted, _ = await first_reset(backend, "answer", 1)
    assert wanted.sandbox is spare.preparation.result()
    assert other.sandbox is not wanted.sandbox
    assert await conformance.solve(wanted, task("answer", 1))
    assert await wanted.evaluate() == 1
    await other.close()
    await wanted.close()


def expected(backend: DesktopBackend) -> list[str]:
    return [spare.task_id for spare in backend.spares._spares]


def ids(*seeds: int) -> list[str]:
    return [task("answer", seed).task_id for seed in seeds]


async def test_orders_that_slots_have_just_taken_keep_their_desktops(backend):
    """Two slots take both orders that were ahead, and two more are expected before a slot claims its desktop."""
    for seed in range(4):
        backend.expect(task("answer", seed))
    spares = [spare.preparation for spare in backend.spares._spares]
    for seed in range(2):
        environment = await backend.open(task("answer", seed))
        assert environment.sandbox is spares[seed].result()
        await environment.close()
    assert expected(backend) == ids(2, 3)


async def test_prepared_desktops_are_bounded_and_replaced_by_a_reset(backend):
    for seed in range(6):
        backend.expect(task("answer", seed))
    assert expected(backend) == ids(2, 3, 4, 5)
    await prepared(backend)
    dead = backend.spares._spares[0].preparation.result()
    assert dead.process is not None
    dead.process.kill()
    await dead.process.wait()
    environment, _ = await first_reset(backend, "answer", 2)
    assert environment.sandbox is not dead
    await environment.close()
    backend.expect(task("no-such-family"))
    backend.expect(task("answer", 7))
    await asyncio.wait([spare.preparation for spare in backend.spares._spares])
    environment, _ = await first_reset(backend, "answer", 7)
    await environment.close()


async def test_the_desktop_of_a_rejected_order_is_given_back_after_its_turn(backend):
    backend.expect(task("answer", 100))
    for seed in range(5):
        backend.expect(task("answer", seed))
        await (await backend.open(task("answer", seed))).close()
        assert expected(backend) == ids(100)
    backend.expect(task("answer", 5))
    assert expected(backend) == ids(5)


async def test_an_application_that_ended_in_a_spare_is_started_again(backend):
    backend.expect(task("answer", 1))
    await prepared(backend)
    [spare] = backend.spares._spares
    await spare.preparation.result().request("POST", "step", {"id": "end", "events": [["down", "Escape"]]})
    environment, start = await first_reset(backend, "answer", 1)
    assert not start.done
    assert await environment.evaluate() == 0
    await environment.close()


async def test_a_returned_desktop_shows_nothing_of_its_last_episode(backend):
    environment, start = await first_reset(backend, "edit", 1)
    await conformance.solve(environment, task("edit", 1))
    sandbox = environment.sandbox
    await environment.close()
    again, screen = await first_reset(backend, "edit", 1)
    assert again.sandbox is sandbox
    assert conformance.same_screen(screen, start)
    await again.close()


async def test_nothing_of_spares_is_left_when_the_backend_stops(backend):
    backend.expect(task("answer", 1))
    await prepared(backend)
    backend.expect(task("answer", 2))
    taken = set(backend.pool._taken)
    await backend.stop()
    assert taken
    assert all(not sandbox.alive for sandbox in taken)
    assert backend.pool._taken == set()
    assert backend.pool._free == []


async def test_desktops_that_fail_in_a_row_rest_until_one_works(backend, monkeypatch):
    for _ in range(pool.FAILURES):
        environment = await backend.open(task("answer"))
        environment.faulty = True
        await environment.close()
    monkeypatch.setattr(pool, "REST_S", 0.7)
    began = time.perf_counter()
    environment, _ = await first_reset(backend, "answer", 1)
    assert time.perf_counter() - began > 0.7
    await environment.close()
    assert pool.rest_s(backend.pool._failed) == 0


def test_a_rest_doubles_up_to_a_bound():
    assert [pool.rest_s(failed) for failed in (0, 2, 3, 4, 5, 20)] == [0, 0, 1, 2, 4, pool.LONGEST_REST_S]
