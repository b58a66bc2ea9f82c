from pathlib import Path

import msgspec
import pytest

from dart_streams.config import Config, load, parse, tasks
from dart_streams.config.files import parse_as
from dart_streams.errors import ConfigError, UserError

SHIPPED = Path(__file__).parents[3] / "deploy" / "config"


def test_an_empty_file_is_the_defaults(tmp_path: Path):
    file = tmp_path / "empty.toml"
    file.write_text("")
    assert load(file) == Config()


def test_an_unknown_key_is_named_with_its_place_and_the_nearest_known_one(tmp_path: Path):
    file = tmp_path / "c.toml"
    file.write_text("[env]\nslot = 3\n")
    with pytest.raises(ConfigError, match=r"c\.toml: unknown key 'env\.slot': did you mean 'slots'\?"):
        load(file)


def test_an_unknown_key_of_a_nested_table_is_named_with_its_whole_place():
    with pytest.raises(ConfigError, match=r"unknown key 'curation\.budget\.treshold': did you mean 'threshold'\?"):
        parse({"curation": {"budget": {"treshold": 0.5}}})


def test_an_unknown_key_like_nothing_known_gets_the_list_of_known_ones():
    with pytest.raises(ConfigError, match=r"'bus\.zzz': known keys here: login, prefix, servers, tls, wait_s"):
        parse({"bus": {"zzz": 1}})


def test_an_unknown_key_in_a_list_of_tables_is_found():
    class Page(msgspec.Struct):
        seeds: int

    class File(msgspec.Struct):
        pages: list[Page]

    with pytest.raises(ConfigError, match=r"f:\n  unknown key 'pages\[1\]\.seed': did you mean 'seeds'\?"):
        parse_as(File, {"pages": [{"seeds": 1}, {"seed": 2}]}, "f")


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"env": {"slots": "many"}}, r"env\.slots: Expected `int`, got `str`"),
        ({"env": {"backend": ""}}, r"env\.backend: Expected `str` of length >= 1"),
        ({"curation": {"dispatch": {"mode": "by hand"}}}, r"curation\.dispatch\.mode: Invalid enum value 'by hand'"),
        ({"env": 3}, r"env: expected a table"),
        ({"store": {"hosts": [1]}}, r"store\.hosts: Expected `str`, got `int`"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(table: dict[str, object], place: str):
    with pytest.raises(ConfigError, match=place):
        parse(table)


def test_a_missing_file_and_a_broken_one_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[env\n")
    with pytest.raises(ConfigError, match=r"broken\.toml is not TOML"):
        load(broken)


def test_a_file_that_is_not_text_and_a_folder_are_refused_clearly(tmp_path: Path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path):
        with pytest.raises(ConfigError, match=path.name):
            load(path)


def test_every_configuration_error_is_meant_for_the_user():
    assert issubclass(ConfigError, UserError)


def test_the_run_is_the_prefix_without_its_dots():
    assert parse({"bus": {"prefix": "dart.20261121-ab."}}).bus.run == "dart.20261121-ab"


@pytest.mark.parametrize("file", sorted(SHIPPED.rglob("*.toml")), ids=lambda file: file.stem)
def test_every_configuration_that_is_shipped_can_be_used(file):
    if file.name.endswith("tasks.toml"):
        assert tasks.load(file).train
    else:
        config = load(file)
        assert tasks.load(file.parent / config.tasks.file).train


def test_deltas_are_refused_where_nearly_every_value_changes():
    with pytest.raises(ConfigError, match=r"trainer\.publish: full_every = 10 .* float32: set dtype = \"bfloat16\""):
        parse({"trainer": {"publish": {"full_every": 10}}})
    wanted = parse({"trainer": {"publish": {"full_every": 10, "dtype": "bfloat16"}}}).trainer.publish
    assert (wanted.full_every, wanted.dtype) == (10, "bfloat16")
    with pytest.raises(ConfigError, match=r"trainer\.publish\.full_every"):
        parse({"trainer": {"publish": {"full_every": 0}}})


def test_adapters_are_off_unless_they_have_a_rank_and_not_beside_deltas():
    assert parse({}).trainer.lora.rank == 0
    assert not parse({}).trainer.publishes_parts
    wanted = parse({"trainer": {"lora": {"rank": 8, "targets": ["q_proj"]}}}).trainer
    assert (wanted.lora.rank, wanted.lora.targets, wanted.publishes_parts) == (8, ("q_proj",), True)
    deltas = {"full_every": 10, "dtype": "bfloat16"}
    with pytest.raises(ConfigError, match=r"trainer: lora\.rank = 8 .* publish\.full_every = 10"):
        parse({"trainer": {"lora": {"rank": 8}, "publish": deltas}})
    with pytest.raises(ConfigError, match=r"trainer\.lora: targets .* rank = 0"):
        parse({"trainer": {"lora": {"targets": ["q_proj"]}}})
    with pytest.raises(ConfigError, match=r"trainer\.lora\.alpha"):
        parse({"trainer": {"lora": {"rank": 8, "alpha": 0}}})
    with pytest.raises(ConfigError, match=r"rollout\.vllm\.second_set"):
        parse({"rollout": {"vllm": {"second_set": "pinned"}}})
