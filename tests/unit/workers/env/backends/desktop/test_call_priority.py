"""A desktop's weight during calls that last long."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.clockwork import by_clockwork
from workers.env.backends.desktop import call_priority, limits
from workers.env.backends.desktop.call_priority import ALLOWANCE_CPU_S, DOUBLINGS, LATE_S, PERIOD_S, CallPriority

FILES = [("cpu.shares", 110, 2**18), ("cpu.weight", 11, 10_000)]


class Group:
    """A control group in files, with a weight and the CPU time so far."""

    def __init__(self, folder: Path, file: str, weight: int) -> None:
        self.file, self.used = folder / file, folder / "cpuacct.usage"
        self.file.write_text(str(weight))
        self.compute(0)
        self.priority = CallPriority(limits.ControlGroup((folder,)))

    def compute(self, cpu_s: float) -> None:
        self.used.write_text(str(int(cpu_s * 1e9)))

    @property
    def weight(self) -> int:
        return int(self.file.read_text())


@pytest.fixture(params=FILES, ids=lambda file: file[0])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Group:
    return Group(tmp_path, *request.param[:2])


@by_clockwork
async def test_the_weight_doubles_while_a_call_is_late_and_falls_at_its_end(group):
    first = group.weight
    with group.priority.during_call():
        await asyncio.sleep(LATE_S - 0.1)
        assert group.weight == first
        await asyncio.sleep(0.2)
        seen = [group.weight]
        for _ in range(3):
            await asyncio.sleep(PERIOD_S)
            seen.append(group.weight)
        assert seen == [2 * first, 4 * first, 8 * first, 16 * first]
    assert group.weight == first
    await asyncio.sleep(100)
    assert group.weight == first


@by_clockwork
async def test_the_weight_stays_within_what_the_kernel_takes(group):
    highest = {name: most for name, _, most in FILES}[group.file.name]
    first = group.weight
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 60)
        assert group.weight == min(first * 2**DOUBLINGS, highest)


@by_clockwork
async def test_a_call_that_computes_for_long_has_the_usual_weight_again(group):
    first = group.weight
    group.compute(1000)
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 0.1)
        group.compute(1000 + ALLOWANCE_CPU_S)
        await asyncio.sleep(PERIOD_S)
        assert group.weight == 4 * first
        group.compute(1001 + ALLOWANCE_CPU_S)
        await asyncio.sleep(PERIOD_S)
        assert group.weight == first
        await asyncio.sleep(100)
        assert group.weight == first
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 0.1)
        assert group.weight == 2 * first, "the next call has an allowance again"


@by_clockwork
async def test_a_failed_call_restores_the_weight_once_no_other_is_late(group):
    first = group.weight
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 0.1)
        with pytest.raises(ValueError, match="failed"), group.priority.during_call():
            raise ValueError("failed")
        assert group.weight == 2 * first
    assert group.weight == first


@by_clockwork
async def test_without_a_control_group_nothing_is_set():
    priority = CallPriority(limits.ControlGroup())
    with priority.during_call():
        await asyncio.sleep(LATE_S + call_priority.PERIOD_S)
