"""How vLLM is set up, without it."""

from pathlib import Path

from dart_streams.config import parse
from workers.rollout.vllm_settings import arguments, environment


def test_one_core_is_left_to_the_others_but_vllm_has_at_least_one():
    assert [environment({}, cores)["OMP_NUM_THREADS"] for cores in (1, 2, 8)] == ["1", "1", "7"]


def test_what_the_user_has_set_stays():
    assert "OMP_NUM_THREADS" not in environment({"OMP_NUM_THREADS": "4"}, 8)


def test_the_engine_is_in_this_process_and_tells_nobody():
    wanted = environment({}, 2)
    assert wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert wanted["VLLM_NO_USAGE_STATS"] == "1"


def test_a_cpu_has_its_memory_named_and_a_gpu_its_own_precision():
    config = parse({"rollout": {"vllm": {"kv_cache_gib": 2}, "max_in_flight": 5}}, source="test")
    on_cpu = arguments(config, Path("m"), on_gpu=False, seed=1)
    on_gpu = arguments(config, Path("m"), on_gpu=True, seed=1)
    assert (on_cpu["dtype"], on_cpu["kv_cache_memory_bytes"], on_cpu["max_num_seqs"]) == ("float32", 2 << 30, 5)
    assert on_gpu["dtype"] == "auto"
    assert "kv_cache_memory_bytes" not in on_gpu


def test_the_largest_screens_of_a_prompt_fit_into_one_step():
    config = parse({"policy": {"max_pixels": 16384 * 28 * 28, "max_images": 3}}, source="test")
    assert arguments(config, Path("m"), on_gpu=True, seed=1)["max_num_batched_tokens"] == 3 * 16384
