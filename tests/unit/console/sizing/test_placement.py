"""Placement of processes on GPUs: sizes that follow, and what is refused by the names of the keys."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.cli.options import read_config
from console.sizing.gpu_devices import Gpus, simulate_gpus
from console.sizing.model_files import ModelShape, shape_of
from console.sizing.placement import Placement, place_processes
from dart_streams.config import parse
from dart_streams.config.files import set_keys
from dart_streams.config.tables import key_values
from dart_streams.errors import ConfigError
from tests.unit.console.sizing.model_directories import UI_TARS, ui_tars_shapes

CONFIGS = Path(__file__).parents[4] / "deploy/config/ui-tars"
MODEL = shape_of(UI_TARS, ui_tars_shapes())


def place(tables: dict[str, Any], gpus: int, gib: float = 80.0, model: ModelShape | None = None):
    """Place a configuration whose file has these tables."""
    keys = {key for key, _ in key_values(tables)}
    return place_processes(parse(tables), keys, simulate_gpus(gpus, gib), model)


def of_both(key: str, processes: int, gpus_key: str, gpus: int) -> dict[str, Any]:
    """Return tables with a number of processes and a number of GPUs."""
    table, _, name = key.partition(".")
    return {table: {name: processes}, "hardware": {gpus_key: gpus}}


def place_file(name: str, gpus: int, gib: float, *settings: str):
    """Place a configuration of UI-TARS with other settings, whose numbers of processes are left out."""
    path = CONFIGS / name
    keys = set_keys(path) - {"rollout.workers", "trainer.processes"}
    return place_processes(read_config(path, settings=settings), keys, simulate_gpus(gpus, gib), MODEL)


@pytest.mark.parametrize(
    ("tables", "gpus", "workers", "trainer"),
    [
        pytest.param({}, 2, [("0",)], ("1",), id="two"),
        pytest.param({}, 8, [("0",), ("1",), ("2",), ("3",)], ("4", "5", "6", "7"), id="half"),
        pytest.param({}, 3, [("0",), ("1",)], ("2",), id="odd"),
        pytest.param({}, 1, [("0",)], ("0",), id="one is shared"),
        pytest.param({"rollout": {"workers": 1}}, 4, [("0",)], ("1", "2", "3"), id="own workers"),
        pytest.param({"trainer": {"processes": 1}}, 4, [("0",), ("1",), ("2",)], ("3",), id="own processes"),
        pytest.param({"hardware": {"rollout_gpus": 1}}, 4, [("0",)], ("1", "2", "3"), id="rollout_gpus"),
        pytest.param({"hardware": {"trainer_gpus": 2}}, 4, [("0",), ("1",)], ("2", "3"), id="trainer_gpus"),
        pytest.param(
            {"hardware": {"rollout_gpus": 1, "trainer_gpus": 1}, "trainer": {"processes": 1}},
            4, [("0",)], ("1",), id="keys that agree",
        ),
        pytest.param({"run": {"minutes": 0}, "rollout": {"engine": "scripted"}}, 2, [], ("0", "1"), id="no engine"),
    ],
)  # fmt: skip
def test_devices_follow_from_count_and_keys(tables, gpus, workers, trainer):
    config, placement = place(tables, gpus)
    assert placement.workers == tuple(workers)
    assert placement.trainer == trainer
    assert config.trainer.processes == len(trainer)
    if workers:
        assert config.rollout.workers == len(workers)


@given(st.integers(1, 16), st.integers(0, 9), st.integers(0, 9))
def test_each_gpu_has_one_process_unless_there_is_only_one(gpus: int, rollout: int, trainer: int):
    hardware = {"rollout_gpus": rollout, "trainer_gpus": trainer}
    try:
        config, placement = place({"hardware": hardware}, gpus)
    except ConfigError:
        assert rollout + trainer > gpus or max(rollout, trainer) >= gpus
        return
    used = [name for devices in (*placement.workers, placement.trainer) for name in devices]
    assert len(set(used)) == len(used) or gpus == 1
    assert config.rollout.workers == (rollout or config.rollout.workers) == len(placement.workers)
    assert config.trainer.processes == (trainer or config.trainer.processes) == len(placement.trainer)


def test_processes_without_a_device_see_none_and_without_gpus_no_change():
    _, placement = place({}, 2)
    assert placement.environment() == {"CUDA_VISIBLE_DEVICES": ""}
    assert placement.of_worker(0) == {"CUDA_VISIBLE_DEVICES": "0"}
    config = parse({"rollout": {"workers": 3}})
    assert place_processes(config, (), Gpus()) == (config, Placement())
    assert Placement().environment(("0",)) == {}


def test_gpus_of_an_endpoint_or_beside_few_processes_are_left_free():
    openai = {"base_url": "http://127.0.0.1:8000/v1", "model": "m", "trainable": True}
    tables = {"rollout": {"engine": "openai", "openai": openai}, "hardware": {"rollout_gpus": 1}}
    assert place(tables, 2)[1].trainer == ("1",)
    idle = place({**tables, "run": {"minutes": 0}}, 2)[1]
    assert (idle.trainer, idle.notes) == ((), ("GPUs that no process has: 1",))
    _, placement = place({"rollout": {"workers": 1}, "trainer": {"processes": 1}}, 4)
    assert (placement.workers, placement.trainer) == ((("0",),), ("1",))
    assert placement.notes == ("GPUs that no process has: 2, 3",)


@pytest.mark.parametrize(
    ("tables", "gpus", "text"),
    [
        (of_both("rollout.workers", 2, "rollout_gpus", 1), 4, r"rollout_gpus = 1 contradicts rollout\.workers = 2"),
        (of_both("trainer.processes", 2, "trainer_gpus", 1), 4, r"trainer_gpus = 1 contradicts trainer\.processes = 2"),
        ({"rollout": {"workers": 2}, "trainer": {"processes": 3}}, 4, r"workers and trainer\.processes take 2 \+ 3"),
        ({"hardware": {"rollout_gpus": 4, "trainer_gpus": 4}}, 4, r"rollout_gpus and hardware\.trainer_gpus take 4"),
        ({"trainer": {"processes": 4}}, 4, "trainer.processes takes 4 of the 4 GPUs .* for rollout workers"),
        ({"rollout": {"workers": 4}}, 4, "rollout.workers takes 4 of the 4 GPUs .* for the trainer"),
        ({"hardware": {"rollout_gpus": 2}}, 0, "hardware.rollout_gpus = 2, and hardware.gpus has none"),
        ({"bus": {"topics": {"partitions": 1}}}, 8, "by hardware.gpus rollout.workers = 4: .*partitions"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_the_names_of_both_keys(tables, gpus, text):
    with pytest.raises(ConfigError, match=text):
        place(tables, gpus)


def test_a_trainer_has_as_few_gpus_as_hold_the_model():
    config, placement = place_file("eight-gpus.toml", 8, 80.0)
    assert (config.rollout.workers, config.trainer.processes) == (4, 4)
    assert placement.trainer_gib == pytest.approx(76.2, abs=0.1)
    config, _ = place_file("eight-gpus.toml", 8, 139.8)
    assert (config.rollout.workers, config.trainer.processes) == (6, 2)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (
            ("eight-gpus.toml", 2, 80.0, "trainer.optimizer=adamw_8bit"),
            r'do not fit on 2 GPUs of 80 GiB: set trainer.optimizer = "adamw" and trainer.offload = "all"',
        ),
        (("two-gpus.toml", 1, 178.0), r"one GPU of 178 GiB: the trainer needs 46\.0, and vLLM leaves 17\.8"),
    ],
    ids=["with advice", "with the arithmetic"],
)
def test_a_model_that_does_not_fit_is_refused(place, reason):
    with pytest.raises(ConfigError, match=reason):
        place_file(*place)


def test_a_tiny_model_shares_one_gpu():
    shapes = {name: [max(1, size // 16) for size in shape] for name, shape in ui_tars_shapes().items()}
    vision = {**UI_TARS["vision_config"], "hidden_size": 80, "intermediate_size": 213, "depth": 2}
    small = {"hidden_size": 224, "intermediate_size": 1184, "vocab_size": 9504, "num_hidden_layers": 4}
    model = shape_of({**UI_TARS, **small, "num_attention_heads": 4, "vision_config": vision}, shapes)
    _, placement = place({"policy": {"max_images": 1}, "trainer": {"recompute": True}}, 1, 139.8, model)
    assert placement.workers == (placement.trainer,) == (("0",),)
    assert placement.trainer_gib < 13.9


def test_counts_of_the_file_are_refused_beyond_the_error_of_the_estimate():
    tables = {"rollout": {"workers": 1}, "trainer": {"processes": 1, "dtype": "bfloat16", "recompute": True}}
    with pytest.raises(ConfigError, match=r"the trainer needs \d+\.\d GiB of a GPU's 80\.0 .*doctor --model"):
        place(tables, 2, 80.0, MODEL)
    needed = place(tables, 2, 400.0, MODEL)[1].trainer_gib
    _, near = place(tables, 2, 0.95 * needed, MODEL)
    assert [note.startswith("the trainer may not fit") for note in near.notes] == [True]


def test_ranks_of_a_node_share_the_state_or_all_nodes_with_one_each():
    nodes = {"nodes": 2, "rendezvous": "node0:29400"}
    sizes = {"dtype": "bfloat16", "recompute": True}
    one, two = ({"rollout": {"workers": 1}, "trainer": {"processes": count, **sizes}} for count in (1, 2))
    alone = place(one, 4, 400.0, MODEL)[1].trainer_gib
    shared = place(two, 4, 400.0, MODEL)[1].trainer_gib
    on_nodes = [
        place({**tables, "rollout": {"workers": 2}, "trainer": {**tables["trainer"], **nodes}}, 4, 400.0, MODEL)[1]
        for tables in (one, two)
    ]
    assert alone > shared
    assert [placement.trainer_gib for placement in on_nodes] == [shared, shared]


def test_two_nodes_have_the_same_devices_each():
    config, placement = place({"trainer": {"nodes": 2, "rendezvous": "node0:29400"}}, 4)
    assert (config.rollout.workers, config.trainer.processes) == (4, 2)
    assert placement.workers == (("0",), ("1",), ("0",), ("1",))
    assert placement.trainer == ("2", "3")
    assert [list(placement.workers_of(node, 4)) for node in (0, 1)] == [[0, 1], [2, 3]]


def test_a_worker_has_all_gpus_of_its_tensor_parallel_size():
    two = {"rollout": {"vllm": {"tensor_parallel": 2}}}
    config, placement = place(two, 8)
    assert placement.workers == (("0", "1"), ("2", "3"))
    assert (config.rollout.workers, config.trainer.processes) == (2, 4)
    assert place(two, 3)[1].trainer == ("2",)
    with pytest.raises(ConfigError, match="tensor_parallel = 2 leaves no GPU for the trainer"):
        place(two, 2)
    with pytest.raises(ConfigError, match="rollout_gpus = 3 is no multiple of"):
        place({**two, "hardware": {"rollout_gpus": 3}}, 8)
