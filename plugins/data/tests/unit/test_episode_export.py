"""A bundle's episodes as rows: each once, whole, with what curation made of it; filters, repeats and gaps."""

from collections import Counter
from pathlib import Path

import pytest

from console.bundles.bundle_inputs import bundle_events, config_of
from console.bundles.episode_index import EpisodeIndex, IndexedEpisodes
from console.runs.bundle import Blob, Bundle, BundleRecord, Writer
from dart_data.episode_columns import RecordedEpisode
from dart_data.episode_export import EpisodeExport, EpisodeFilter, episode_count
from dart_data.episode_rows import episode_of
from dart_streams.config import Config
from dart_streams.errors import UserError
from tests.integration.recorded_run import record, settings
from topics import curated, observations, trained, trajectories

ALL = EpisodeFilter()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return Bundle(record(tmp_path_factory.mktemp("export") / "run.dart", config=settings(step_ms=1)))


def export(bundle: Bundle, wanted: EpisodeFilter = ALL, layout: str = "trajectory", config: Config | None = None):
    """Return the rows of each episode, and the counts."""
    with EpisodeIndex() as index:
        made = EpisodeExport(bundle, "recorded", index, IndexedEpisodes(index, bundle))
        policy = (config or config_of(bundle)).policy
        return list(made.rows(wanted, layout, policy)), made.result


def logged(bundle: Bundle) -> dict[str, RecordedEpisode]:
    """Return every episode of a bundle, as its log has it."""
    images = {blob.sha256: blob.data for blob in bundle.blobs()}
    steps: dict[str, list] = {}
    for one in bundle_events(bundle, observations.TOPIC):
        steps.setdefault(one.trajectory_id, []).append(one)
    return {
        name: RecordedEpisode(
            observations=found,
            images={one.screenshot.sha256: images[one.screenshot.sha256] for one in found if one.screenshot},
        )
        for name, found in steps.items()
        if found[-1].end is not None
    }


@pytest.mark.parametrize("layout", ["step", "trajectory"])
def test_every_episode_is_exported_once_and_without_loss(bundle, layout):
    rows, result = export(bundle, layout=layout)
    back = [episode_of(made) for made in rows]
    wanted = logged(bundle)
    assert {one.observations[0].trajectory_id: one for one in back} == wanted
    assert len(back) == len(wanted) == result.episodes > 50
    assert result.rows == sum(map(len, rows))
    assert episode_count(bundle) >= len(wanted)


def test_advantages_and_optimizer_steps_are_those_of_the_log(bundle):
    rows, _ = export(bundle)
    groups = list(bundle_events(bundle, curated.TOPIC))
    members = {one.trajectory_id: one for group in groups for one in group.members}
    steps = {name: [step.train_step] for step in bundle_events(bundle, trained.TOPIC) for name in step.trajectory_ids}
    of_curated = 0
    for [row] in rows:
        member = members.get(row["trajectory_id"])
        of_curated += member is not None
        assert row["trajectory_advantage"] == (member.advantage if member else None)
        selected = [step["step"] for step in row["step_data"] if step["selected"]]
        assert selected == (member.selected if member else [])
        assert row["train_steps"] == steps.get(row["trajectory_id"], [])
    assert 0 < of_curated < len(rows)
    assert steps


def test_filters_select_the_named_episodes(bundle):
    everything = list(bundle_events(bundle, trajectories.TOPIC))
    newest = max(one.version_max for one in everything if one.version_max is not None)
    for wanted, holds in (
        (EpisodeFilter(outcomes=["success"]), lambda one: one.outcome == "success"),
        (
            EpisodeFilter(tasks=["simulated/steps-3#*", "simulated/box#1"]),
            lambda one: not one.task_id.startswith("simulated/box#") or one.task_id == "simulated/box#1",
        ),
        (
            EpisodeFilter(first_version=1, last_version=newest - 1),
            lambda one: one.version_min is not None and one.version_min >= 1 and one.version_max < newest,
        ),
        (EpisodeFilter(purposes=["demonstration"]), lambda one: one.purpose == "demonstration"),
    ):
        rows, result = export(bundle, wanted)
        expected = [one.trajectory_id for one in everything if holds(one)]
        assert Counter(row["trajectory_id"] for [row] in rows) == Counter(expected)
        assert result.filtered == len(everything) - len(expected)


def copied(bundle: Bundle, path, *, blobs: bool = True, change=lambda topic, records: records) -> Bundle:
    """Return a bundle with other records, or without screenshots."""
    with Writer(path, bundle.manifest) as copy:
        for name in ("config.toml", "tasks.toml"):
            copy.text(name, bundle.text(name))
        for topic in bundle.topics():
            copy.records(topic, change(topic, list(bundle.records(topic))))
        if blobs:
            copy.blobs(Blob(one.sha256, one.data) for one in bundle.blobs())
    return Bundle(path)


def moved(record: BundleRecord, offset: int) -> BundleRecord:
    return BundleRecord(record.partition, offset, record.at_ms, record.key, record.value, record.headers)


def test_a_repeated_trajectory_is_exported_once_and_a_broken_one_left_out(bundle, tmp_path):
    def repeated(topic, records):
        twice = [*records, *records] if topic in ("trajectories", "observations", "trained") else records
        return [moved(record, offset) for offset, record in enumerate(twice)]

    rows, _ = export(copied(bundle, tmp_path / "twice.dart", change=repeated))
    assert rows == export(bundle)[0]

    def without_the_first(topic, records):
        return records[1:] if topic == "observations" else records

    rows, result = export(copied(bundle, tmp_path / "gap.dart", change=without_the_first))
    assert result.incomplete == 1
    assert len(rows) == len(export(bundle)[0]) - 1


def test_a_bundle_without_screenshots_is_refused_with_how_to_capture_them(bundle, tmp_path):
    with pytest.raises(UserError, match="capture the run with --blobs"):
        export(copied(bundle, tmp_path / "blind.dart", blobs=False))


def test_the_index_leaves_no_file_and_a_full_disk_is_named_with_its_place(bundle):
    with EpisodeIndex() as index:
        folder = index.folder.name
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
    with EpisodeIndex() as index:
        index.database.execute("PRAGMA max_page_count = 20")
        with pytest.raises(UserError, match=r"full.*TMPDIR"):
            IndexedEpisodes(index, bundle)
