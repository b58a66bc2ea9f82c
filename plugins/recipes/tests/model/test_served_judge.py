"""A judge behind vLLM's own server, with the tiny policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_recipes.judge import judging
from dart_recipes.judge.rules import Settings
from dart_streams.config import Config
from dart_streams.curation.hooks import Own
from tests import events
from tests.model.breadth import vllm_server
from tests.model.test_vllm_engine import SCREENS, screen
from topics.observations import EpisodeEnd
from workers.env.environment import Screen
from workers.env.judging import EndedEpisode

KEY = "a key that is in no log"


@pytest.fixture(scope="module")
def url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with vllm_server.served(policy, Config(), KEY, log) as base:
        yield base
    assert KEY not in log.read_text()


@pytest.mark.parametrize("choice", ["Verdict: success", "Verdict: failure"])
async def test_a_judge_behind_the_server_gives_its_verdict(url, monkeypatch, choice):
    """The tiny policy knows no verdicts: the server lets it write one alone."""
    monkeypatch.setenv("TEST_KEY", KEY)
    bounds = {"max_tokens": 64, "timeout_s": 600}
    endpoint = {"base_url": url, "model": vllm_server.NAME, "api_key": "env:TEST_KEY", **bounds}
    shown = Screen(image=SCREENS[screen(5).sha256], media_type="image/png", width=160, height=210, instruction="")
    ended = EpisodeEnd(kind="success", reward=1.0)
    episode = EndedEpisode((events.observation(instruction="Click button 7."),), ended, shown)
    free = Settings(**endpoint)
    made = await judging.judge_episode(Own(free, None), episode)
    assert made.success is None and made.reason.startswith("no verdict in the answer")
    bound = Settings(**endpoint, options={"structured_outputs": {"choice": [choice]}})
    verdict = await judging.judge_episode(Own(bound, None), episode)
    assert verdict.success is (choice == "Verdict: success")
