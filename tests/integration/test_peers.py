"""The same episodes in this project's browser and in a peer's."""

from pathlib import Path

import pytest

from benchmarks import modes
from benchmarks.peers import plays
from benchmarks.peers.contestants import PYTHON, Contestant, Ours, Peer
from dart_streams.tasks import load

BASE = modes.located(Path(__file__).parents[2] / "deploy/config/demo.toml")
COUNT = 12


async def recorded() -> list[plays.Play]:
    return await plays.recorded(BASE, load(Path(BASE.tasks.file)), COUNT)


async def disagreements(contestant: Contestant, known: list[plays.Play], seconds: float) -> list[str]:
    """Play some episodes; return those that ended otherwise than recorded."""
    try:
        turn = await contestant.turn(0, seconds)
    finally:
        await contestant.stop()
    ends = [end for slot in turn.slots for end in slot.ends]
    assert ends and turn.steps and turn.core_ms() > 0
    return [
        known[number].page
        for number, done, reward in ends
        if (done, reward) != (known[number].done, known[number].reward)
    ]


async def test_recorded_episodes_end_the_same_in_kept_documents_with_others_beside_them():
    known = await recorded()
    assert len(known) == COUNT
    assert {play.reward for play in known} > {1.0}, "successes and failures"
    assert await disagreements(Ours("ours", BASE, 4, known), known, 5.0) == []


@pytest.mark.skipif(not PYTHON.is_file(), reason="the peer is missing: make peers")
@pytest.mark.parametrize("variant", ["default", "lean", "playwright"])
async def test_recorded_episodes_end_the_same_in_a_peer(variant: str, tmp_path: Path):
    known = await recorded()
    peer = Peer(variant, 1, plays.write(known, tmp_path / "plays.json"))
    assert await disagreements(peer, known, 5.0) == []
