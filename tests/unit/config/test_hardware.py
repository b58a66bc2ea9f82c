"""The dial ``hardware.cores``: what it sets, what it leaves alone, and that its result means the same anywhere."""

import pytest

from dart_streams.config import hardware, load, parse
from dart_streams.config.hardware import MachineSize, read_machine, size_tables
from dart_streams.errors import ConfigError
from tests.sources import ROOT

LAPTOP = MachineSize(cores=2, memory_gib=24.0, gpu=False)


@pytest.mark.parametrize(
    ("tables", "machine", "slots", "browsers", "gather_ms"),
    [
        pytest.param({"hardware": {"cores": "auto"}}, LAPTOP, 24, 2, 200.0, id="laptop"),
        pytest.param({"hardware": {"cores": "auto"}}, MachineSize(1, 24.0, False), 12, 1, 200.0, id="one core"),
        pytest.param({"hardware": {"cores": 4}}, LAPTOP, 48, 4, 200.0, id="a number"),
        pytest.param({"hardware": {"cores": "auto"}}, MachineSize(16, 16.0, False), 32, 8, 200.0, id="little memory"),
        pytest.param({"hardware": {"cores": "auto"}}, MachineSize(16, 0.4, False), 1, 8, 200.0, id="no memory"),
        pytest.param({"hardware": {"cores": "auto"}}, MachineSize(16, 256.0, True), 192, 8, 0.0, id="gpu"),
        pytest.param({"hardware": {"cores": "auto"}, "env": {"slots": 3}}, LAPTOP, 3, 2, 200.0, id="own slots"),
        pytest.param({"hardware": {"cores": 0}}, LAPTOP, 16, 1, 0.0, id="off"),
        pytest.param({"hardware": {}}, LAPTOP, 16, 1, 0.0, id="empty table"),
        pytest.param({}, LAPTOP, 16, 1, 0.0, id="no table"),
        pytest.param(
            {"hardware": {"cores": 2}, "env": {"miniwob": {"browsers": 5}}, "rollout": {"vllm": {"gather_ms": 7.0}}},
            LAPTOP, 24, 5, 7.0, id="own sizes",
        ),
        pytest.param(
            {"hardware": {"cores": 2}, "env": {"backend": "simulated"}}, LAPTOP, 16, 1, 200.0, id="another backend"
        ),
        pytest.param(
            {"hardware": {"cores": 2}, "rollout": {"engine": "scripted"}}, LAPTOP, 24, 2, 0.0, id="another engine"
        ),
    ],
)  # fmt: skip
def test_sizes_follow_from_the_dial(tables, machine, slots, browsers, gather_ms):
    sized = size_tables(tables, machine)
    config = parse(sized, "test")
    assert (config.env.slots, config.env.miniwob.browsers) == (slots, browsers)
    assert config.rollout.vllm.gather_ms == gather_ms
    assert config.hardware.cores == 0
    assert size_tables(sized, MachineSize(64, 512.0, True)) == sized, "on another machine it means the same"


@pytest.mark.parametrize(
    "tables",
    [
        {"hardware": {"cores": "many"}},
        {"hardware": {"cores": -1}},
        {"hardware": {"cores": 2.5}},
        {"hardware": {"cores": 2, "gpu": 1}},
        {"hardware": {"gpus": "all"}},
        {"hardware": {"gpus": -1}},
        {"hardware": 3},
        {"hardware": {"cores": 2}, "env": 3},
        {"hardware": {"cores": 2}, "env": {"miniwob": 3}},
        {"hardware": {"cores": 2}, "rollout": {"vllm": []}},
        {"hardware": {"cores": 2}, "env": {"backend": []}},
    ],
    ids=str,
)
def test_wrong_tables_are_refused(tables):
    with pytest.raises(ConfigError):
        parse(size_tables(tables, LAPTOP), "test")


def test_a_container_bounds_the_machine(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{3 * 2**30}\n")
    monkeypatch.setattr(hardware, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(hardware, "CONTROL_GROUPS", (tmp_path / "memory.max",))
    assert read_machine().cores == 1
    assert read_machine().memory_gib == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize("content", ["max 100000", "max", "", None])
def test_without_a_bound_the_machine_counts(content, tmp_path, monkeypatch):
    quota, limit = tmp_path / "cpu.max", tmp_path / "memory.max"
    for file in (quota, limit) if content is not None else ():
        file.write_text(content)
    monkeypatch.setattr(hardware, "CPU_QUOTA", quota)
    monkeypatch.setattr(hardware, "CONTROL_GROUPS", (limit,))
    assert read_machine().cores >= 1
    assert read_machine().memory_gib > 0.1


def test_the_demonstration_has_its_measured_sizes_on_two_cores(monkeypatch):
    monkeypatch.setattr(hardware, "read_machine", lambda: LAPTOP)
    config = load(ROOT / "deploy/config/demo.toml")
    assert (config.env.slots, config.env.miniwob.browsers, config.rollout.vllm.gather_ms) == (24, 2, 200.0)
    assert load(ROOT / "deploy/config/desktop.toml").env.slots == 12
    assert load(ROOT / "deploy/config/phone.toml").env.slots == 8
