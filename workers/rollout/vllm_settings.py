"""Environment variables and engine arguments of vLLM. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_streams.config import Config
from dart_streams.config.hardware import available_cores
from dart_streams.policy.encoder_cache import batched_tokens
from dart_streams.policy.staged_weights import UTILIZATION

CPU_BLOCK = 32
"""Tokens of a block of the key-value cache on a CPU, the fewest of its kernels; only whole blocks are shared."""


ARENA_BYTES = 3 << 30
"""Free bytes of ``/dev/shm`` for vLLM's tensor arena, which reserves 2 GiB."""


def engine_environment(present: Mapping[str, str], ranks: int = 1, cores: int = 0) -> dict[str, str]:
    """Return the variables to set before importing torch and vllm; ``present`` ones stay.

    An engine process would spend a third of a request's CPU time on sending pixels and tokens. With as many OpenMP
    threads as ``cores`` (0: those available), busy-waiting takes half of the CPU, so one core is left free; ``ranks``
    share the others. vLLM
    would bind the ranks of all workers to the same cores.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # V2 cannot run our logits processor in this process
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_HOST_IP": "127.0.0.1",
        "OMP_NUM_THREADS": str(max(1, ((cores or available_cores()) - 1) // ranks)),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {name: value for name, value in wanted.items() if name not in present}


def engine_arguments(
    config: Config, model_dir: Path, on_gpu: bool, seed: int, memory_share: float = UTILIZATION, shared_bytes: int = 0
) -> dict[str, Any]:
    """Return the arguments of ``EngineArgs``; ``seed`` must differ between starts, or a group loses diversity.

    With enough ``shared_bytes`` of free shared memory, ranks map a prompt's pixels instead of receiving copies.
    """
    ranks = config.rollout.vllm.tensor_parallel
    shared: dict[str, Any] = {
        "model": str(model_dir),
        "load_format": "dummy",
        "max_model_len": -1,
        "max_num_seqs": config.rollout.max_in_flight,
        "max_num_batched_tokens": batched_tokens(config),
        "limit_mm_per_prompt": {"image": config.policy.max_images, "video": 0},
        "skip_mm_profiling": True,
        "mm_processor_cache_gb": 0,
        "mm_device_do_normalize": False,
        "enable_prefix_caching": config.rollout.vllm.prefix_cache,
        "async_scheduling": False,
        "tensor_parallel_size": ranks,
        "enable_shm_tensor_arena": ranks > 1 and shared_bytes >= ARENA_BYTES,
        "distributed_executor_backend": "uni" if ranks == 1 else "mp",
        "worker_extension_cls": "workers.rollout.vllm_rank.RankExtension",
        "logits_processors": ["workers.rollout.vllm_rank:AllowedTokens"],
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "seed": seed,
    }
    if on_gpu:
        return {**shared, "dtype": "auto", "gpu_memory_utilization": memory_share}
    memory = (config.rollout.vllm.kv_cache_gib << 30) // ranks
    return {
        **shared,
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": memory,
        "block_size": CPU_BLOCK,
    }
