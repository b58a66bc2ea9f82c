"""What these tests share: a backend, and desktops of the priority of other processes."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from dart_desktops.desktop.backend import DesktopBackend


@pytest.fixture(scope="module")
def desktops_of_normal_priority() -> Iterator[None]:
    """Give desktops the priority of this process.

    At their own, low one an office suite takes minutes to start while other tests use all processors.
    """
    from dart_desktops.desktop import limits, sandbox

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "LOW_PRIORITY", ())
        patch.setattr(limits, "SHARES", 1024)
        patch.setattr(limits, "NICE", 0)
        patch.setattr(limits, "WEIGHTS", {"cpu.shares": (1024, 2**18), "cpu.weight": (100, 10_000)})
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[DesktopBackend]:
    """A backend with the module's configuration, for its tests that do desktops no harm."""
    made = DesktopBackend(request.module.config())
    await made.start()
    yield made
    await made.stop()
