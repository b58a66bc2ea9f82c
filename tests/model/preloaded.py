"""What the fork server imports, once for all that begin from it. No tensor is made: threads outlive no fork."""

import os

from workers.rollout import vllm_settings

os.environ.update(vllm_settings.engine_environment(os.environ))

import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl
import transformers.models.qwen2_5_vl.processing_qwen2_5_vl
import transformers.models.qwen2_vl.image_processing_qwen2_vl
import transformers.tokenization_mistral_common
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_model_runner
import vllm.v1.worker.cpu_worker
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING

import trainer.main
import workers.rollout.vllm_engine

# Each `from_pretrained` of a processor asks these for theirs, and so imports them all.
VIDEO_PROCESSOR_MAPPING.items()

__all__ = ["trainer", "transformers", "vllm", "workers"]
