"""What a tracker is given: names and units of the field, the same samples each time, a picture of each."""

import io

import msgspec
from hypothesis import given
from PIL import Image

from dart_data.tracker.filmstrip import MAX_SCREENS, TEXT_HEIGHT, WIDTH, caption_of, draw_filmstrip
from dart_data.tracker.points import IN_SECONDS, NAMES, point_of, sample_trajectories
from dart_streams.config.tracker import Tracker
from plugins.data.tests.unit.test_episode_rows import episodes
from tests import events
from topics.training_metrics import BY_NAME

STEP = events.trained_step(
    20,
    version=21,
    at_ms=1_700_000_000_000,
    group_ids=["g"],
    trajectory_ids=[f"t{number}" for number in range(9)],
    metrics={
        "loss": 0.5,
        "reward": 0.25,
        "reward/click-test": 0.5,
        "train_ms": 1500.0,
        "kl_reference": 0.1,
        "tokens": 9,
    },
)


def test_metrics_have_the_names_and_units_of_the_field_and_none_is_lost():
    point = point_of(STEP)
    assert point.values == {
        "train/loss": 0.5,
        "train/reward": 0.25,
        "train/reward/click-test": 0.5,
        "train/step_time": 1.5,
        "train/kl": 0.1,
        "train/tokens": 9.0,
        "train/version": 21.0,
    }
    assert (point.step, point.at_ms) == (20, 1_700_000_000_000)


def test_only_metrics_of_the_table_have_names_and_no_two_share_one():
    assert NAMES.keys() | IN_SECONDS <= BY_NAME.keys()
    assert len(set(NAMES.values())) == len(NAMES)
    own = {f"train/{name}" for name in NAMES}
    assert all(name in own or name.removeprefix("train/") not in NAMES for name in NAMES.values())


def test_the_same_samples_are_drawn_each_time_and_only_of_sampled_steps():
    settings = Tracker(tool="mlflow", samples=2, samples_every=10)
    drawn = sample_trajectories(STEP, settings)
    assert len(drawn) == len(set(drawn)) == 2
    mixed = msgspec.structs.replace(STEP, trajectory_ids=[*reversed(STEP.trajectory_ids), *STEP.trajectory_ids])
    assert sample_trajectories(mixed, settings) == drawn
    assert sample_trajectories(msgspec.structs.replace(STEP, train_step=21), settings) == []
    assert sample_trajectories(STEP, Tracker(tool="mlflow", samples=0)) == []
    assert len(sample_trajectories(STEP, Tracker(tool="mlflow", samples=99))) == 9


@given(episodes())
def test_a_picture_shows_the_screens_that_there_are(episode):
    shown = sum(one.screenshot is not None for one in episode.observations)
    with Image.open(io.BytesIO(draw_filmstrip(episode.observations, episode.images))) as image:
        assert image.format == "PNG"
        assert image.width == WIDTH * max(1, min(shown, MAX_SCREENS))
        assert image.height >= TEXT_HEIGHT
    lines = caption_of(episode.observations)
    assert episode.observations[0].order.task_id in lines
    assert str(episode.observations[-1].end.reward) in lines
