"""What the fork server imports, once for all that begin from it. No tensor is made: threads outlive no fork."""

import os

from workers.rollout import vllm_settings

os.environ.update(vllm_settings.environment(os.environ, vllm_settings.cores()))

import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_model_runner
import vllm.v1.worker.cpu_worker

import trainer.main
import workers.rollout.vllm_engine

__all__ = ["trainer", "transformers", "vllm", "workers"]
