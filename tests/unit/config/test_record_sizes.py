"""For any configuration that is accepted, the largest record of each topic fits; others name the keys to lower."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topics
from console.cli.config import errors_in
from dart_streams.bus.codec import decode, encode
from dart_streams.config import Config, load, parse, tasks
from dart_streams.config.record_sizes import largest_records, size_refusal
from dart_streams.errors import ConfigError
from tests.faults.largest_records import largest_event
from tests.task_files import write_tasks

SHIPPED = sorted((Path(__file__).parents[3] / "deploy" / "config").rglob("*.toml"))


def check(config: Config, max_steps: int) -> None:
    """Encode the largest event of each topic, and decode it again."""
    for name, size in largest_records(config, max_steps).items():
        topic = topics.BY_NAME[name]
        record = encode(topic, largest_event(name, config, max_steps))
        assert len(record.value) <= size.value_bytes <= topic.max_message_bytes, name
        assert decode(topic, record.value, record.headers) == largest_event(name, config, max_steps)


def test_every_topic_has_the_size_of_its_largest_record():
    assert set(topics.BY_NAME) == set(largest_records(Config()))


@pytest.mark.parametrize(
    ("tables", "max_steps"),
    [
        ({}, 100),
        ({}, 10_000),
        ({"policy": {"max_tokens": 32_768}}, 100),
        ({"policy": {"max_tokens": 32_768, "max_texts": 14}}, 1),
        ({"policy": {"max_tokens": 500, "max_texts": 900, "max_images": 100}}, 1),
        ({"curation": {"budget": {"base": 64}}, "recipe": "ui-s1"}, 1_000),
        ({"curation": {"budget": {"base": 1024}}, "trainer": {"groups_per_step": 64}}, 300),
        ({"trainer": {"groups_per_step": 256}, "recipe": ["ring-lite", "computerrl"]}, 1),
        ({"trainer": {"publish": {"full_every": 64, "dtype": "bfloat16"}, "weights_uri": "s3://" + "é" * 400}}, 1),
        ({"env": {"workers": 60, "slots": 1000}}, 1),
        ({"tasks": {"proposals": True}, "policy": {"max_tokens": 4_096}}, 1),
        ({"feedback": {"enabled": True, "recent": 256}, "curation": {"budget": {"base": 1}}}, 1),
        ({"curation": {"dispatch": {"mode": "coupled"}}, "trainer": {"groups_per_step": 1000}}, 1),
    ],
)
def test_the_largest_record_of_a_large_deployment_fits_its_estimate(tables: dict[str, Any], max_steps: int):
    config = parse(tables)
    assert not size_refusal(config, max_steps)
    check(config, max_steps)


def number(most: int) -> st.SearchStrategy[int]:
    """Any number from 1 on, of each size as often as of any other."""
    return st.integers(0, most.bit_length()).flatmap(lambda bits: st.integers(1, min(most, 2**bits)))


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "recipe": st.sampled_from(([], ["ui-s1"])),
        "policy": st.fixed_dictionaries(
            {"max_tokens": number(32_768), "max_texts": number(10**5), "max_images": number(10**5)}
        ),
        "env": st.fixed_dictionaries({"workers": number(10**3), "slots": number(10**3)}),
        "curation": st.fixed_dictionaries(
            {
                "budget": st.fixed_dictionaries({"base": number(2**16)}),
                "dispatch": st.fixed_dictionaries({"mode": st.sampled_from(("rollout-wise", "coupled"))}),
            }
        ),
        "trainer": st.fixed_dictionaries(
            {
                "groups_per_step": number(10**4),
                "weights_uri": st.integers(0, 2000).map(lambda length: "s3://" + "u" * length),
            }
        ),
    }
)


@given(CONFIGURATIONS, number(10_000))
def test_any_configuration_is_refused_with_the_key_to_lower(tables: dict[str, Any], max_steps: int):
    try:
        config = parse(tables)
    except ConfigError as error:
        assert re.search(r"a record on [a-z-]+ could take \d+ bytes, .* at most \d+: lower [a-z_]+\.", str(error))
        return
    if not size_refusal(config, max_steps):
        check(config, max_steps)


@pytest.mark.parametrize(
    ("tables", "topic", "key"),
    [
        ({"policy": {"max_tokens": 32_768, "max_texts": 50}}, "action-requests", "policy.max_texts"),
        ({"policy": {"max_images": 50_000}}, "action-requests", "policy.max_images"),
        ({"trainer": {"groups_per_step": 4096}}, "trained", "trainer.groups_per_step"),
        ({"env": {"workers": 1000, "slots": 1000}}, "curation-log", "env.slots"),
        ({"curation": {"budget": {"base": 65_536}}}, "curated", "curation.budget.base"),
        (
            {"trainer": {"publish": {"full_every": 64, "dtype": "bfloat16"}, "weights_uri": "s3://" + "u" * 12_000}},
            "weights",
            "trainer.weights_uri",
        ),
    ],
)
def test_what_no_record_has_room_for_is_refused_with_the_keys_to_lower(tables: dict[str, Any], topic: str, key: str):
    with pytest.raises(ConfigError, match=rf"a record on {topic} could take .* lower .*{re.escape(key)}"):
        parse(tables)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_tasks(tmp_path, "p", max_steps=5000)
    file = tmp_path / "c.toml"
    file.write_text("[curation.budget]\nbase = 200\n")
    return file


def test_a_group_of_long_episodes_is_refused_with_its_task_file(files: Path):
    wanted = r"tasks\.toml: a record on curated could take .* lower curation\.budget\.base or max_steps of the task"
    with pytest.raises(ConfigError, match=wanted):
        tasks.tasks_of(load(files), files.with_name("tasks.toml"))
    (error,) = errors_in(files)
    assert re.search(wanted, error)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_what_is_shipped_fits(file: Path):
    errors = [error for error in errors_in(file) if "could take" in error]
    assert not errors


def test_the_page_of_the_topics_has_the_sizes_of_the_defaults():
    page = (Path(__file__).parents[3] / "docs" / "concepts" / "topics.md").read_text()
    for name, size in largest_records(parse({"run": {"state_dir": "/runs"}}), max_steps=30).items():
        assert f"| {name} | {size.value_bytes // 1024} KiB | {size.keys}".rstrip() + " |" in page
