import tomllib
from pathlib import Path

import msgspec
import pytest
import structlog
import tomli_w

from dart_streams.config import Config, load, parse
from dart_streams.config.files import DROPPED, FIXED, MOVED, key_values, migrated, put, renamed
from dart_streams.console.bundles.bundle_inputs import CONFIG, config_of
from dart_streams.console.runs.bundle import Bundle
from dart_streams.errors import ConfigError
from docs.reference import iterate_keys

GOLDEN = Path(__file__).parents[1] / "golden/bundle.v1.dart"


def test_a_bundle_of_an_earlier_version_is_read_with_the_present_keys():
    bundle = Bundle(GOLDEN)
    recorded = tomllib.loads(bundle.text(CONFIG))
    assert recorded["curation"]["dispatch"]["patience"] == FIXED["curation.dispatch.patience"]
    config = config_of(bundle)
    assert config.curation.mobilerl.shortest_path == recorded["curation"]["reward"]["shortest_path"]
    assert config.env.miniwob.call_timeout_s == config.env.simulated.call_timeout_s == recorded["env"]["call_timeout_s"]
    assert config_of(bundle, ["curation.ui_s1.step_weight=0.5"]).curation.ui_s1.step_weight == 0.5


def test_the_configuration_of_an_earlier_runs_folder_is_read_too(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text(
        '[run]\nevaluate = false\n\n[env]\nisolation = "problem"\n\n[trainer]\nentropy_beta = 0.1\ndual_clip = 3.0\n'
    )
    config = load(file, recorded=True)
    assert config.env.miniwob.isolation == "problem"
    assert config.evaluation.episodes == 0
    assert (config.trainer.entropy_coef, config.trainer.dual_clip.factor) == (0.1, 3.0)


def test_a_recorded_run_on_all_steps_keeps_all_of_them():
    tables = migrated({"curation": {"entropy": {"enabled": False, "keep": 0.8}}}, "test")
    assert parse(tables).curation.entropy.keep == 1.0
    with pytest.raises(ConfigError, match=r"entropy\.enabled.*set curation\.entropy\.keep = 1\.0"):
        parse({"curation": {"entropy": {"enabled": False}}})


def test_a_recorded_gspo_run_keeps_its_mean_over_tokens():
    assert parse(migrated({"trainer": {"objective": "gspo"}}, "test")).trainer.aggregate == "tokens"


def test_a_moved_key_of_a_written_configuration_works_and_is_told(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text('[evaluation]\ntemperature = 0.5\n\n[env]\nisolation = "problem"\n')
    with structlog.testing.capture_logs() as logs:
        config = load(file)
    assert (config.evaluation.temperatures, config.env.miniwob.isolation) == ((0.5,), "problem")
    assert [(entry["old"], entry["new"]) for entry in logs] == [
        ("evaluation.temperature", "evaluation.temperatures"),
        ("env.isolation", "env.miniwob.isolation"),
    ]


def test_an_empty_table_is_kept_where_another_key_has_moved():
    tables = {"trainer": {"mask": {}, "pulse": {"every": 3}}}
    assert renamed(tables, "test") == {"trainer": {"mask": {}, "entropulse": {"every": 3}}}
    assert tables["trainer"]["pulse"] == {"every": 3}


def test_a_moved_key_that_is_given_under_both_names_is_refused(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("[evaluation]\ntemperature = 0.5\ntemperatures = [1.0]\n")
    with pytest.raises(ConfigError, match=r"unknown key 'evaluation\.temperature': it is now evaluation\.temperatures"):
        load(file)


@pytest.mark.parametrize("key", MOVED)
def test_an_unmoved_configuration_is_told_nothing_and_a_moved_one_lies_where_it_belongs(key: str):
    tables: dict = {}
    put(tables, key, "value")
    with structlog.testing.capture_logs() as logs:
        found = dict(key_values(renamed(tables, "test")))
        assert dict(key_values(renamed(renamed(tables, "test"), "test"))) == found
    assert found.keys() == {*MOVED[key]}
    assert len(logs) == 2


def test_a_present_configuration_is_left_as_it_is():
    tables = msgspec.to_builtins(parse({"trainer": {"dual_clip": {"factor": 2.0}}, "workload": {}}))
    assert parse(migrated(tables, "test")) == parse(tables)


def test_a_recorded_temperature_is_the_first_of_several():
    tables = migrated({"evaluation": {"temperature": 0.5}}, "test")
    assert parse(tables).evaluation.temperatures == (0.5,)


def test_a_recorded_value_that_is_now_fixed_at_another_is_refused():
    with pytest.raises(ConfigError, match=r"recorded with curation\.dispatch\.patience = 8.*fixes at 4"):
        migrated({"curation": {"dispatch": {"patience": 8}}}, "test")


def test_a_key_that_became_a_constant_says_so():
    with pytest.raises(ConfigError, match=r"'rollout\.heartbeat_s': it is now a constant"):
        parse({"rollout": {"heartbeat_s": 1.0}})


def test_old_keys_are_no_present_ones_and_lead_to_present_ones():
    present = {key.place for key in iterate_keys()}
    assert not present & {*MOVED, *FIXED, *DROPPED}
    assert {place for places in MOVED.values() for place in places} <= present


def test_a_resolved_configuration_survives_writing_and_reading(tmp_path: Path):
    file = tmp_path / "config.toml"
    tables = msgspec.to_builtins(Config())
    del tables["workload"], tables["run"]["train_steps"], tables["trainer"]["max_train_steps"]
    file.write_text(tomli_w.dumps(tables))
    assert load(file) == load(file, recorded=True) == Config()
