"""Which keys another configuration may change in a run that is resumed."""

import msgspec
import pytest

from console.runs.resumption import KEPT, changed_keys, refuse_changes
from dart_streams.config import Config, parse
from dart_streams.config.tables import key_values
from dart_streams.errors import ConfigError

BASE = {"env": {"backend": "simulated"}, "trainer": {"learning_rate": 1e-6}, "run": {"minutes": 240.0}}
RUN = parse(BASE)
ENDPOINT = {"rollout": {"engine": "openai", "openai": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}}


def changed(**tables: dict) -> list:
    return changed_keys(RUN, parse({name: {**BASE.get(name, {}), **tables.get(name, {})} for name in {*BASE, *tables}}))


def test_keys_that_the_folder_sets_are_no_changes_and_kept_ones_exist():
    assert changed() == []
    assert changed(run={"id": "other", "state_dir": "/x"}, bus={"prefix": "dart.x."}, tasks={"file": "o.toml"}) == []
    places = [place for place, _ in key_values(msgspec.to_builtins(Config()))]
    places += ["env.installed.options", "recipes.mobilerl.patience"]
    assert [kept for kept in KEPT if not any(f"{place}.".startswith(f"{kept}.") for place in places)] == []


@pytest.mark.parametrize(
    "table",
    [
        {"run": {"minutes": 1.0, "train_steps": 5}},
        {"trainer": {"learning_rate": 3e-4}},
        {"env": {"slots": 3, "workers": 2, "request_timeout_s": 3.0}},
        {"rollout": {"workers": 3}},
        {"bus": {"servers": "10.0.0.1:9092"}, "store": {"hosts": ["10.0.0.1"]}},
        {"evaluation": {"episodes": 3}, "telemetry": {"sampling": 0.5}, "ui": {"port": 0}},
    ],
)
def test_pace_machines_and_measurements_may_change_and_are_named(table: dict):
    found = changed(**table)
    assert {key.place.partition(".")[0] for key in found} == set(table)
    assert not [key for key in found if key.reason]
    refuse_changes(found, "r")


@pytest.mark.parametrize(
    "table, line",
    [
        ({"env": {"backend": "miniwob"}}, r'env\.backend: "simulated" -> "miniwob"'),
        ({"policy": {"max_images": 3}}, r"policy\.max_images: \d -> 3 \(its prompts"),
        ({"policy": {"path": "/m"}}, r'policy\.path: "" -> "/m"'),
        (
            {"policy": {"max_tokens": 400, "dialect": {"name": "ui-tars"}}},
            r'policy\.dialect\.name: "native" -> "ui-tars"',
        ),
        ({"curation": {"max_staleness": 4}}, r"curation\.max_staleness: 2 -> 4 \(its decisions"),
        ({"curation": {"budget": {"base": 2}}}, r"curation\.budget\.base"),
        ({"store": {"keyspace": "other"}}, r"store\.keyspace"),
        ({"trainer": {"lora": {"rank": 8}}}, r"trainer\.lora\.rank: 0 -> 8"),
        ({"trainer": {"freeze_vision": True}}, r"trainer\.freeze_vision: false -> true"),
        ({"trainer": {"weights_uri": "s3://b/w"}}, r"trainer\.weights_uri"),
        ({"env": {"installed": {"options": {"a": 1}}}}, r"env\.installed\.options\.a: none -> 1"),
        ({"env": {"miniwob": {"partial_credit": True}}}, r"env\.miniwob\.partial_credit: false -> true"),
        ({"warmup": {"width": 64}}, r"warmup\.width"),
    ],
)
def test_a_kept_key_is_refused_with_both_values_and_the_reason(table: dict, line: str):
    with pytest.raises(ConfigError, match=rf"(?s)run 'r' can't go on.*{line}.*start a new run"):
        refuse_changes(changed(**table), "r")


def test_a_run_of_an_endpoint_has_no_weights_and_may_be_given_a_policy():
    asked = parse({**ENDPOINT, "run": {"minutes": 0.0}})
    found = changed_keys(asked, parse({"policy": {"path": "/m", "max_images": 3}, "trainer": {"lora": {"rank": 8}}}))
    assert {"policy.path", "policy.max_images", "trainer.lora.rank"} <= {key.place for key in found}
    refuse_changes(found, "r")
    with pytest.raises(ConfigError, match="dialect"):
        refuse_changes(changed_keys(asked, parse({"policy": {"max_tokens": 400, "dialect": {"name": "ui-tars"}}})), "r")
