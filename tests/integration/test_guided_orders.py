"""An environment worker reads recorded actions from the store, on a real broker and database."""

from pathlib import Path

import pytest

from dart_streams.episodes.guidance import OTHER_ACTION
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.store import AsyncStore, connect_async
from tests.integration.env_harness import Harness, harness_of, order, played_config, solve, worker
from topics.action_requests import ActionRequest
from topics.observations import Observation
from topics.rollout_orders import Guide

TASK = "simulated/steps-3#4"
BESIDE = "Action: click(start_box='(0,0)')"


def answer(request: ActionRequest) -> str:
    """Solve the first order; of later ones leave the recording at step 1."""
    return BESIDE if request.step == 1 and request.sampling.max_tokens > 1 else solve(request)


def trajectory_of(harness: Harness, number: int) -> list[Observation]:
    [last] = harness.ended[f"o{number}"]
    return harness.observed[last.trajectory_id]


@pytest.mark.timeout(300)
async def test_a_worker_plays_the_prefix_and_patches_that_the_store_has(services, tmp_path: Path):
    config = played_config(services, tmp_path)
    session = await connect_async(config.store)
    store = AsyncStore(session, config.bus.run, cache_mb=0)
    async with harness_of(config, answer) as harness, worker(config):
        await harness.order(order(0, TASK))
        await harness.until(lambda: len(harness.ended) == 1)
        recorded = trajectory_of(harness, 0)
        for observation in recorded:  # as the recorder does
            await store.write_step(observation)
        source = recorded[0].trajectory_id
        prefix = Guide(trajectory_id=source, mode="prefix", share=0.5, single=True, bound=9)
        patches = Guide(trajectory_id=source, mode="patches", patches=1, bound=9)
        lost = Guide(trajectory_id="lost", mode="patches")
        await harness.order(*(order(n, TASK, guide=guide) for n, guide in enumerate((prefix, patches, lost), start=1)))
        await harness.until(lambda: len(harness.ended) == 4)
    session.cluster.shutdown()
    single, patched, fault = (trajectory_of(harness, number) for number in (1, 2, 3))
    assert [harness.outcome(number) for number in (1, 2, 3)] == ["failure", "success", "env_error"]
    assert (single[-1].end.reason, single[-1].step) == (OTHER_ACTION, 2)
    assert [summarize(each).recorded_steps for each in (single, patched)] == [[0], [1]]
    assert fault[-1].end.reason.startswith("order.guide: trajectory lost")
    asked = {(request.trajectory_id, request.step) for request in harness.requests}
    assert (single[0].trajectory_id, 0) not in asked, "the prefix needs no policy"
    assert (patched[0].trajectory_id, 1) in asked, "the policy was asked where it was patched"
