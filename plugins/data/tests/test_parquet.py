"""The exported Parquet file: opened by ``datasets``, equal to the log, and refused where it is none."""

import io
import random

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from console.bundles.bundle_inputs import bundle_events, config_of
from console.bundles.episode_index import CurationFacts
from console.runs.bundle import Bundle
from dart_data import demonstrations, parquet
from dart_data.episode_columns import ImageCell
from dart_data.episode_rows import rows_of
from dart_streams.errors import UserError
from plugins.data.tests.unit.test_episode_export import logged
from tests.command_line import invoke
from tests.integration.recorded_run import record
from topics import trajectories


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return Bundle(record(tmp_path_factory.mktemp("parquet") / "run.dart"))


def run(*arguments) -> str:
    done = invoke("data", *arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.mark.parametrize("layout", ["step", "trajectory"])
def test_datasets_opens_the_file_with_images_messages_and_numbers(bundle, tmp_path, layout):
    path = tmp_path / "set.parquet"
    run("export", path, "--bundle", bundle.path, "--rows", layout)
    found = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert found.features == parquet.features_of(layout)
    assert found.features["images"] == datasets.List(datasets.Image())
    wanted = logged(bundle)
    assert set(found["trajectory_id"]) == {
        one.trajectory_id
        for one in bundle_events(bundle, trajectories.TOPIC)
        if one.reward is not None and one.purpose != "eval"
    }
    for row in found:
        episode = wanted[row["trajectory_id"]]
        placeholders = [part for message in row["messages"] for part in message["content"] if part["type"] == "image"]
        assert len(placeholders) == len(row["images"]) > 0
        assert all(isinstance(image, Image.Image) for image in row["images"])
        assert row["reward"] == episode.observations[-1].end.reward
        last = row["messages"][-1] if layout == "step" else row["messages"][-2]
        number = row["step"] if layout == "step" else row["steps"] - 1
        taken = episode.observations[number + 1].taken
        assert last["role"] == "assistant"
        assert last["content"][0]["text"] == taken.text
        step = row if layout == "step" else row["step_data"][number]
        assert step["logprobs"] == taken.logprobs
        assert step["tokens"] == taken.tokens
        assert [tuple(span.values()) for span in step["versions"]] == [
            (span.version, span.start, span.end) for span in taken.versions
        ]


@pytest.mark.parametrize("layout", ["step", "trajectory"])
def test_what_is_read_back_is_what_the_log_has(bundle, tmp_path, layout):
    path = tmp_path / "set.parquet"
    every = ["success", "failure", "truncated", "invalid_action", "env_error", "policy_error"]
    purposes = ("--purpose", "train,demonstration,eval")
    run("export", path, "--bundle", bundle.path, "--rows", layout, "--outcome", ",".join(every), *purposes)
    found = [placed.episode for placed in demonstrations.episodes_in(path)]
    assert {one.observations[0].trajectory_id: one for one in found} == logged(bundle)


def test_row_groups_are_bounded_and_their_bounds_change_no_row(bundle, tmp_path, monkeypatch):
    [name, episode] = next(iter(logged(bundle).items()))
    rows = rows_of("step", "run", episode, CurationFacts(), config_of(bundle).policy)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 3)
    path = tmp_path / "many.parquet"
    with parquet.ParquetSet(path, "step") as file:
        for number in range(40):
            file.write([{**row, "trajectory_id": f"{name}-{number}"} for row in rows])
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert max(sizes) == 3
    assert sum(sizes) == 40 * len(rows)
    assert [len(found) for found in parquet.episodes_in(path)] == [len(rows)] * 40


def test_reading_holds_a_row_group_and_not_the_file(bundle, tmp_path, monkeypatch):
    [_, episode] = next(iter(logged(bundle).items()))
    [row] = rows_of("trajectory", "run", episode, CurationFacts(), config_of(bundle).policy)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 20)
    path, rows = tmp_path / "large.parquet", 48
    with parquet.ParquetSet(path, "trajectory") as file:
        for number in range(rows):
            image = {"bytes": random.Random(number).randbytes(1 << 20), "path": None}
            file.write([{**row, "trajectory_id": f"t-{number}", "images": [image]}])
    size, before = path.stat().st_size, pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in parquet.rows_in(path)]
    assert len(held) == rows
    assert size > rows << 20
    assert max(held) < size / 4


def test_a_file_that_was_not_finished_does_not_appear(tmp_path):
    path = tmp_path / "half.parquet"
    with pytest.raises(RuntimeError), parquet.ParquetSet(path, "step"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_overwritten_and_an_empty_set_is_not_left_behind(bundle, tmp_path):
    path = tmp_path / "set.parquet"
    with pytest.raises(UserError, match="nothing was exported: the filters left out"):
        run("export", path, "--bundle", bundle.path, "--task", "no/such#*")
    assert not path.exists()
    path.touch()
    with pytest.raises(UserError, match="exists"):
        run("export", path, "--bundle", bundle.path)


def test_another_parquet_file_or_none_is_refused_with_what_to_give(tmp_path):
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"text": ["a"]}), other)
    with pytest.raises(UserError, match="lacks the column images"):
        list(parquet.episodes_in(other))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="not a Parquet file, or is damaged"):
        list(parquet.episodes_in(broken))


def test_a_set_that_datasets_has_written_again_is_still_a_set(bundle, tmp_path):
    """A user filters or shards a set with the library, and imports what is left."""
    path, again = tmp_path / "set.parquet", tmp_path / "folder" / "again.parquet"
    again.parent.mkdir()
    run("export", path, "--bundle", bundle.path, "--rows", "trajectory")
    found = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    kept = found.filter(lambda row: row["reward"] == 1.0)
    kept.to_parquet(str(again))
    wanted = logged(bundle)
    back = [placed.episode for placed in demonstrations.episodes_in(again.parent)]
    assert len(back) == len(kept) > 0
    for episode in back:
        assert episode == wanted[episode.observations[0].trajectory_id]


def test_images_are_in_the_file_byte_for_byte(bundle, tmp_path):
    path = tmp_path / "set.parquet"
    run("export", path, "--bundle", bundle.path)
    data = {blob.data for blob in bundle.blobs()}
    for row in parquet.rows_in(path):
        for image in row["images"]:
            assert ImageCell(**image).bytes in data
            assert Image.open(io.BytesIO(image["bytes"])).format == "PNG"
