import tomllib
from pathlib import Path

import msgspec
import pytest

from console.bundles.bundle_inputs import CONFIG, config_of
from console.runs.bundle import Bundle
from dart_streams.config import load, parse
from dart_streams.config.recorded import CONSTANTS, IGNORED, RENAMED, upgrade_recorded
from dart_streams.errors import ConfigError
from docs.reference import iterate_keys

GOLDEN = Path(__file__).parents[1] / "golden/bundle.v1.dart"


def test_an_old_bundle_is_read_with_the_present_keys():
    bundle = Bundle(GOLDEN)
    recorded = tomllib.loads(bundle.text(CONFIG))
    assert recorded["curation"]["dispatch"]["patience"] == CONSTANTS["curation.dispatch.patience"]
    config = config_of(bundle)
    assert recorded["curation"]["reward"]["shortest_path"] == 0.0 and config.recipe == (), "no recipe was switched on"
    assert config.env.miniwob.call_timeout_s == config.env.simulated.call_timeout_s == recorded["env"]["call_timeout_s"]
    assert config.evaluation.temperatures == (recorded["evaluation"]["temperature"],)
    chosen = config_of(bundle, ["recipe=ui-s1", "recipes.ui-s1.step_weight=0.5"])
    assert chosen.recipes["ui-s1"]["step_weight"] == 0.5 and not chosen.curation.pool.enabled


def test_a_run_folder_is_read_with_renamed_keys_and_a_written_file_is_not(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text('[env]\nisolation = "problem"\n\n[trainer]\nentropy_beta = 0.1\n')
    config = load(file, recorded=True)
    assert (config.env.miniwob.isolation, config.trainer.entropy_coef) == ("problem", 0.1)
    with pytest.raises(ConfigError, match=r"config\.toml:[\s\S]*'trainer\.entropy_beta': did you mean 'entropy_coef'"):
        load(file)


def test_a_present_configuration_is_left_as_it_is_beside_old_names():
    tables = msgspec.to_builtins(parse({"trainer": {"dual_clip": {"factor": 2.0}}, "workload": {}}))
    assert parse(upgrade_recorded(tables, "test")) == parse(tables)
    tables = {"evaluation": {"temperature": 0.5, "temperatures": [0.2]}}
    assert upgrade_recorded(tables, "test") == {"evaluation": {"temperatures": [0.2]}}


def test_another_value_than_the_constant_is_refused_but_for_ignored_keys():
    with pytest.raises(ConfigError, match=r"recorded with curation\.dispatch\.patience = 8.*fixes at 4"):
        upgrade_recorded({"curation": {"dispatch": {"patience": 8}}}, "test")
    assert upgrade_recorded({"run": {"evaluate": False}}, "test") == {}


def test_former_keys_are_no_present_ones_and_lead_to_present_ones():
    present = {key.place for key in iterate_keys()}
    assert not present & {*RENAMED, *CONSTANTS, *IGNORED}
    assert {place for places in RENAMED.values() for place in places} <= present


def test_bounds_of_another_objective_are_left_out_of_a_recording():
    tables = {"trainer": {"objective": "gspo", "clip_low": 0.2, "clip_high": 0.28}}
    trainer = parse(upgrade_recorded(tables, "test")).trainer
    assert (trainer.clip_low, trainer.clip_high) == (3e-4, 4e-4)
    own = {"trainer": {"objective": "gspo", "clip_low": 1e-4, "clip_high": 2e-4}}
    assert upgrade_recorded(own, "test") == own
