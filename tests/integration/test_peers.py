"""The same episodes in this project's browser, in a peer's, and behind the socket of the page server."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import modes
from benchmarks.peers import plays
from benchmarks.peers.contestants import PYTHON, Contestant, Ours, Peer
from benchmarks.peers.page_server import PageServer
from dart_streams import actions
from dart_streams.config import Config
from dart_streams.tasks import load

DEMO = modes.located(Path(__file__).parents[2] / "deploy/config/demo.toml")
PATIENT = msgspec.structs.replace(DEMO.env.miniwob, call_timeout_s=120.0)
BASE = msgspec.structs.replace(DEMO, env=msgspec.structs.replace(DEMO.env, miniwob=PATIENT))
"""No episode ends as a fault because the machine is slow."""
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


async def test_the_page_server_rewards_the_oracle_s_click_and_no_other_text(tmp_path: Path):
    known = next(play for play in await recorded() if play.reward == 1.0 and len(play.clicks) == 1)
    right = actions.format(actions.Click(*known.clicks[0]))
    server = PageServer(Config(env=BASE.env))
    async with server.serving(tmp_path / "pages"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "pages", limit=2**24)
        writer.write(json.dumps({"screens": [[known.page, known.seed]]}).encode() + b"\n")
        (screen,) = json.loads(await reader.readline())["screens"]
        assert screen["instruction"] and screen["png"]
        asked = [[known.page, known.seed, text] for text in (right, "Action: wait()", "click it")]
        writer.write(json.dumps({"answers": asked}).encode() + b"\n")
        assert json.loads(await reader.readline()) == {"rewards": [1.0, 0.0, 0.0]}
        writer.close()
    assert server.episodes == 3


async def test_the_page_server_hangs_up_on_a_page_that_does_not_exist(tmp_path: Path):
    server = PageServer(Config(env=BASE.env))
    async with server.serving(tmp_path / "pages"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "pages")
        writer.write(b'{"screens": [["no-such-page", 1]]}\n')
        assert await reader.read() == b""
        writer.close()
