"""A desktop's weight during calls, alone and beside other calls, short and long."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.desktop import call_priority, limits
from dart_desktops.desktop.call_priority import (
    ALLOWANCE_CPU_S,
    HIGHEST,
    LATE_S,
    PERIOD_S,
    CallPriority,
    shared_weight,
)
from tests.unit.clockwork import by_clockwork

CORES = 2
FILES = {"cpu.shares": (110, 1024), "cpu.weight": (11, 102)}
"""Weights of a desktop without a call, and of usual priority."""


class Group:
    """A control group in files, with a weight and the CPU time so far."""

    def __init__(self, folder: Path, file: str) -> None:
        self.idle, self.usual = FILES[file]
        self.file, self.used = folder / file, folder / "cpuacct.usage"
        self.file.write_text(str(self.idle))
        self.compute(0)
        self.priority = CallPriority(limits.ControlGroup((folder,)))

    def compute(self, cpu_s: float) -> None:
        self.used.write_text(str(int(cpu_s * 1e9)))

    @property
    def weight(self) -> int:
        return int(self.file.read_text())

    def weighs(self, times_usual: float) -> bool:
        return self.weight == pytest.approx(times_usual * self.usual, rel=0.02)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_priority, "count_processors", lambda: CORES)


@pytest.fixture(params=FILES)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> list[Group]:
    """Return ten groups."""
    folders = [tmp_path / str(number) for number in range(10)]
    for folder in folders:
        folder.mkdir()
    return [Group(folder, request.param) for folder in folders]


@pytest.fixture
def group(groups: list[Group]) -> Group:
    return groups[0]


@by_clockwork
async def test_a_call_alone_has_usual_priority_that_doubles_when_it_is_late(group):
    with group.priority.during_call():
        await asyncio.sleep(LATE_S - 0.1)
        assert group.weighs(1)
        await asyncio.sleep(0.2)
        for times in (2, 4, 8, 16):
            assert group.weighs(times)
            await asyncio.sleep(PERIOD_S)
    for pause in (0, 100):
        await asyncio.sleep(pause)
        assert group.weight == group.idle


@by_clockwork
async def test_calls_share_the_weight_of_one_process_on_each_processor(groups):
    with contextlib.ExitStack() as calls:
        for number, own in enumerate(groups, 1):
            calls.enter_context(own.priority.during_call())
            assert own.weighs(min(1, CORES / number)), number
    assert all(own.weight == own.idle for own in groups)
    with groups[-1].priority.during_call():
        assert groups[-1].weighs(1), "the calls before have ended"


@by_clockwork
async def test_the_weight_of_a_late_call_stays_within_its_maximum(group):
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 60)
        assert group.weight == HIGHEST * group.idle


@by_clockwork
async def test_a_call_that_computes_for_long_weighs_as_an_idle_desktop(group):
    group.compute(1000)
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 0.1)
        group.compute(1000 + ALLOWANCE_CPU_S)
        await asyncio.sleep(PERIOD_S)
        assert group.weighs(4)
        group.compute(1001 + ALLOWANCE_CPU_S)
        for pause in (PERIOD_S, 100):
            await asyncio.sleep(pause)
            assert group.weight == group.idle
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 0.1)
        assert group.weighs(2), "the next call has an allowance again"


@by_clockwork
async def test_a_failed_call_restores_the_weight_once_no_other_is_in_progress(group):
    with group.priority.during_call():
        await asyncio.sleep(LATE_S + 0.1)
        with pytest.raises(ValueError, match="failed"), group.priority.during_call():
            raise ValueError("failed")
        assert group.weighs(2)
    assert group.weight == group.idle


@by_clockwork
async def test_without_a_control_group_nothing_is_set(group):
    priority = CallPriority(limits.ControlGroup())
    with priority.during_call():
        await asyncio.sleep(LATE_S + PERIOD_S)
        with group.priority.during_call():
            assert group.weighs(1), "it takes no part of the weight"


@given(st.integers(1, 2000), st.integers(1, 256))
def test_calls_weigh_at_most_one_process_a_processor_or_as_idle_ones(calls, cores):
    weight = shared_weight(calls, cores) * limits.SHARES
    assert limits.SHARES <= weight <= limits.USUAL_SHARES
    assert weight == limits.SHARES or weight * calls <= limits.USUAL_SHARES * cores * (1 + 1e-9)
