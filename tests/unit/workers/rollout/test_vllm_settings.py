"""How vLLM is set up, without it."""

from pathlib import Path

import pytest

from dart_streams.config import parse
from dart_streams.policy.staged_weights import second_set_place, vllm_utilization
from workers.rollout.vllm_settings import engine_arguments, engine_environment

GIB = 1 << 30


def test_one_core_is_left_to_the_others_and_ranks_share_the_rest():
    assert [engine_environment({}, cores=cores)["OMP_NUM_THREADS"] for cores in (1, 2, 8)] == ["1", "1", "7"]
    wanted = engine_environment({}, ranks=2, cores=9)
    assert (wanted["OMP_NUM_THREADS"], wanted["VLLM_CPU_OMP_THREADS_BIND"]) == ("4", "nobind")
    assert engine_environment({}, ranks=2, cores=2)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in engine_environment({"OMP_NUM_THREADS": "4"}), "what the user has set stays"


def test_the_engine_is_in_this_process_and_several_ranks_share_the_cache():
    one, two = (
        engine_arguments(
            parse({"rollout": {"vllm": {"tensor_parallel": ranks, "kv_cache_gib": 3}}}), Path("m"), False, seed=1
        )
        for ranks in (1, 2)
    )
    assert (one["distributed_executor_backend"], one["tensor_parallel_size"]) == ("uni", 1)
    assert (two["distributed_executor_backend"], two["tensor_parallel_size"]) == ("mp", 2)
    assert two["kv_cache_memory_bytes"] * 2 == one["kv_cache_memory_bytes"]
    wanted = engine_environment({})
    assert wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert wanted["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize(
    ("ranks", "shared_bytes", "shares"), [(2, 3 << 30, True), (2, (3 << 30) - 1, False), (1, 3 << 30, False)]
)
def test_ranks_share_pixels_where_shared_memory_is_large_enough(ranks, shared_bytes, shares):
    config = parse({"rollout": {"vllm": {"tensor_parallel": ranks}}})
    arguments = engine_arguments(config, Path("m"), True, seed=1, shared_bytes=shared_bytes)
    assert arguments["enable_shm_tensor_arena"] == shares


def test_a_cpu_has_its_memory_named_and_a_gpu_its_own_precision():
    config = parse({"rollout": {"vllm": {"kv_cache_gib": 2}, "max_in_flight": 5}}, source="test")
    on_cpu = engine_arguments(config, Path("m"), on_gpu=False, seed=1)
    on_gpu = engine_arguments(config, Path("m"), on_gpu=True, seed=1)
    assert (on_cpu["dtype"], on_cpu["kv_cache_memory_bytes"], on_cpu["max_num_seqs"]) == ("float32", 2 << 30, 5)
    assert on_gpu["dtype"] == "auto"
    assert "kv_cache_memory_bytes" not in on_gpu


def test_the_largest_screens_of_a_prompt_fit_into_one_step():
    config = parse({"policy": {"max_pixels": 16384 * 28 * 28, "max_images": 3}}, source="test")
    assert engine_arguments(config, Path("m"), on_gpu=True, seed=1)["max_num_batched_tokens"] == 3 * 16384


@pytest.mark.parametrize(
    ("wanted", "on_gpu", "weights_gib", "total_gib", "place"),
    [
        *(("auto", False, 16, 32, "device"), ("host", False, 16, 32, "device"), ("none", False, 1, 32, "none")),
        *(("auto", True, 1, 80, "none"), ("none", True, 1, 80, "none"), ("host", True, 1, 80, "host")),
        *(("device", True, 16, 80, "device"), ("device", True, 28, 80, "device"), ("device", True, 29, 80, "host")),
        ("device", True, 16, 24, "host"),
    ],
)
def test_the_second_set_is_on_the_gpu_only_if_wanted_and_if_it_fits(wanted, on_gpu, weights_gib, total_gib, place):
    assert second_set_place(wanted, on_gpu, weights_gib * GIB, total_gib * GIB) == place


def test_vllm_is_given_what_a_second_set_on_the_device_leaves():
    assert vllm_utilization("device", 16 * GIB, 80 * GIB) == pytest.approx(0.7)
    assert vllm_utilization("host", 16 * GIB, 80 * GIB) == vllm_utilization("none", 16 * GIB, 80 * GIB) == 0.9
    config = parse({}, source="test")
    assert engine_arguments(config, Path("m"), on_gpu=True, seed=1, memory_share=0.7)["gpu_memory_utilization"] == 0.7
    assert "gpu_memory_utilization" not in engine_arguments(config, Path("m"), on_gpu=False, seed=1, memory_share=0.7)
