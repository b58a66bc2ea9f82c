"""The same episodes end alike in this project's browser, in a peer's, and behind the page server's socket."""

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
from dart_streams.config.tasks import TaskSet, load
from dart_streams.screens import smart_resize
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH
from workers.env.environment import rescale

DEMO = modes.load_config(Path(__file__).parents[2] / "deploy/config/demo.toml")
PATIENT = msgspec.structs.replace(DEMO.env.miniwob, call_timeout_s=120.0)
BASE = msgspec.structs.replace(DEMO, env=msgspec.structs.replace(DEMO.env, miniwob=PATIENT))
"""No episode ends as a fault because the machine is slow."""
COUNT = 12
SIZE = WIDTH, HEIGHT
SEEN = smart_resize(*SIZE, BASE.policy.min_pixels, BASE.policy.max_pixels)
assert SEEN != SIZE


async def recorded() -> list[plays.Play]:
    return await plays.record_plays(BASE, load(Path(BASE.tasks.file)), COUNT)


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


async def test_recorded_episodes_end_the_same_in_kept_documents():
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


async def test_the_page_server_takes_answers_in_pixels_of_the_policy_s_image(tmp_path: Path):
    (grid,) = (page for page in load(Path(BASE.tasks.file)).pages if page.page == "grid-coordinate")
    known = await plays.record_plays(BASE, TaskSet([grid]), COUNT)
    right = [(play.seed, *play.clicks[0]) for play in known if play.reward == 1.0]
    assert right, "the oracle has half of the clicks"
    server = PageServer(BASE)
    async with server.serving(tmp_path / "pages"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "pages", limit=2**24)
        writer.write(json.dumps({"screens": [["grid-coordinate", seed] for seed, _, _ in right]}).encode() + b"\n")
        for screen in json.loads(await reader.readline())["screens"]:
            assert screen["instruction"] and screen["png"]
        clicks = [(seed, rescale(actions.Click(x, y), SIZE, SEEN)) for seed, x, y in right]
        texts = [(seed, actions.format(click)) for seed, click in clicks]
        others = [(seed, text) for seed, _ in texts for text in ("Action: wait()", "click it")]
        asked = [["grid-coordinate", seed, text] for seed, text in texts + others]
        writer.write(json.dumps({"answers": asked}).encode() + b"\n")
        assert json.loads(await reader.readline()) == {"rewards": [1.0] * len(texts) + [0.0] * len(others)}
        writer.close()
    assert server.episodes == len(asked)


async def test_the_page_server_hangs_up_on_a_page_that_does_not_exist(tmp_path: Path):
    server = PageServer(Config(env=BASE.env))
    async with server.serving(tmp_path / "pages"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "pages")
        writer.write(b'{"screens": [["no-such-page", 1]]}\n')
        assert await reader.read() == b""
        writer.close()
