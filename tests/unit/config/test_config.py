import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_streams.config import Config, files, hardware, load, parse, tasks
from dart_streams.config.tables import put_key
from dart_streams.errors import ConfigError

SHIPPED = Path(__file__).parents[3] / "deploy" / "config"


def test_an_empty_file_is_the_defaults_without_adapters(tmp_path: Path):
    file = tmp_path / "empty.toml"
    file.write_text("")
    assert load(file) == Config()
    assert parse({}).trainer.lora.rank == 0
    assert not parse({}).trainer.publishes_parts
    wanted = parse({"trainer": {"lora": {"rank": 8, "targets": ["q_proj"]}}}).trainer
    assert (wanted.lora.rank, wanted.lora.targets, wanted.publishes_parts) == (8, ("q_proj",), True)


@pytest.mark.parametrize(
    ("text", "partitions"),
    [
        ("env.workers = 4\nrollout.workers = 3", None),
        ("env.workers = 3\nrollout.workers = 7", 7),
        ("env.workers = 6\nbus.topics.partitions = 12", 12),
    ],
)
def test_topics_have_a_partition_for_each_worker(tmp_path: Path, text: str, partitions: int | None):
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert load(file).bus.topics.partitions == partitions


def test_a_worker_that_would_have_no_partition_is_refused():
    with pytest.raises(ConfigError, match=r"bus\.topics\.partitions 4 is less than env\.workers 6"):
        parse({"env": {"workers": 6}, "bus": {"topics": {"partitions": 4}}})


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=rf"{tmp_path.name} can't be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"env": {"slot": 3}}, r"unknown key 'env\.slot': did you mean 'slots'\?"),
        ({"curation": {"budget": {"treshold": 0.5}}}, r"'curation\.budget\.treshold': did you mean 'threshold'\?"),
        ({"trainer": {"lr": 1e-4}}, r"'trainer\.lr': its name here is 'trainer\.learning_rate'"),
        ({"bus": {"zzz": 1}}, r"'bus\.zzz': known keys here: login, prefix, servers, tls, topics, wait_s"),
        ({"env": {"slots": "many"}}, r"env\.slots: Expected `int`, got `str`"),
        ({"env": {"backend": ""}}, r"env\.backend: Expected `str` of length >= 1"),
        ({"curation": {"dispatch": {"mode": "by hand"}}}, r"curation\.dispatch\.mode: Invalid enum value 'by hand'"),
        ({"env": 3}, r"env: expected a table"),
        ({"store": {"hosts": [1]}}, r"store\.hosts: Expected `str`, got `int`"),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_its_place(table: dict[str, object], place: str):
    with pytest.raises(ConfigError, match=place):
        parse(table)


def test_the_run_is_the_prefix_without_its_dots():
    assert parse({"bus": {"prefix": "dart.20261121-ab."}}).bus.run == "dart.20261121-ab"


K8S = SHIPPED.parent / "k8s"


@pytest.mark.parametrize("file", [None, *sorted(SHIPPED.rglob("*.toml")), *sorted(K8S.rglob("dart.toml"))], ids=str)
def test_every_configuration_that_is_shipped_traces_each_trajectory(file):
    if file is None or not file.name.endswith("tasks.toml"):
        assert (load(file) if file else parse({})).telemetry.sampling == 1.0


@pytest.mark.parametrize("file", sorted(SHIPPED.rglob("*.toml")), ids=lambda file: file.stem)
def test_every_configuration_that_is_shipped_can_be_used(file):
    if file.name.endswith("tasks.toml"):
        assert tasks.load(file).train
    else:
        config = load(file)
        assert tasks.load(file.parent / config.tasks.file).train


def test_names_of_other_trainers_lead_to_keys_that_are_there():
    tables = msgspec.to_builtins(Config())
    for place in files.SYNONYMS.values():
        section = functools.reduce(lambda table, name: table[name], place.split(".")[:-1], tables)
        assert place.rpartition(".")[2] in section, place


def test_settings_win_over_the_file_and_size_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "read_machine", lambda: hardware.MachineSize(4, 64.0, gpu=False))
    file = tmp_path / "c.toml"
    file.write_text('[env]\nslots = 3\nbackend = "miniwob"\n[policy]\nmodel_id = "a"')
    found = load(file, settings=["hardware.cores=auto", "policy.model_id=b", "bus.servers=h:1"])
    assert (found.env.slots, found.policy.model_id, found.bus.servers) == (3, "b", "h:1")
    assert found.env.miniwob.browsers == 4, "sized for the cores that the setting asked for"
    with pytest.raises(ConfigError, match=r"c\.toml with env\.slot=3: unknown key 'env\.slot'"):
        load(file, settings=["env.slot=3"])


def test_a_relative_model_folder_lies_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "beside/org/model").mkdir(parents=True)
    (tmp_path / "beside/c.toml").write_text('[policy]\npath = "org/model"\n')
    (tmp_path / "c.toml").write_text('[policy]\npath = "org/model"\n')
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path / "beside/c.toml").policy.path == str(tmp_path / "beside/org/model")
    assert load(Path("beside/c.toml")).policy.path == str(tmp_path / "beside/org/model")
    assert load(tmp_path / "c.toml").policy.path == "org/model", "of the working directory, or of the hub"


SIGNED = "https://b.example/x?X-Amz-Credential=A%2Fs3&X-Amz-Signature=hunter2"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(
            ("trainer.weights_uri", f"s3://AKIA:{password}@bucket/run")
            for password in ("hunter2", "hun/ter2", "hunter2@", "12hunter2")
        ),
        *(("trainer.checkpoints_uri", f"simplecache::s3://{user}:hunter2@bucket") for user in ("AKIA", "")),
        *(("store.objects.uri", uri) for uri in (SIGNED, "az://c/x?sv=2&sig=hunter2", "https://hunter2@host/x")),
        ("telemetry.otlp_endpoint", "http://user:hunter2@collector:4318"),
        ("tracker", {"tool": "mlflow", "target": "postgresql://mlflow:hunter2@db/mlflow"}),
        ("rollout.openai.base_url", "https://:hunter2@host/v1"),
        ("env.osworld.lease_url", "http://host:8000/?token=hunter2"),
        ("env.osworld.machines", [{"url": "http://a:5000"}, {"url": "http://user:hunter2@b:5000"}]),
        ("env.osworld.acquire", ["curl", "https://host/?api_key=hunter2"]),
        ("env.mcp.servers", [{"name": "a", "command": ["tool", "--url=https://host/?access_token=hunter2"]}]),
        ("env.installed.options.url", "ws://user:hunter2@host:8000"),
        ("recipes.distillation.base_url", "https://host/v1?key=hunter2"),
    ],
)
def test_an_address_with_credentials_is_refused_and_not_shown(place, value):
    tables: dict[str, Any] = {}
    put_key(tables, place, value)
    with pytest.raises(ConfigError, match=rf"{place.split('.')[-1]}.* has credentials.*leave them out") as refused:
        parse(tables)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        *("s3://bucket/run", "abfs://container@account.dfs.core.windows.net/x", "sftp://user@host/x", "gs://b/a:b@c"),
        *("http://[::1]:9000/x", "hdfs://name:8020/x", "https://host/x?versionId=1", "file:///a/b", "memory://a:80"),
        *("s3://arn:aws:s3:eu-west-1:12:accesspoint/a", "hdfs://name:8020/a@b", "http://a:80,b:81/x@y"),
    ],
)
def test_an_address_without_credentials_is_accepted(uri):
    assert parse({"trainer": {"weights_uri": uri}}).trainer.weights_uri == uri
