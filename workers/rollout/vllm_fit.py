"""Whether vLLM serves a model, without building an engine. Imports vllm: not to be imported by other modules' heads."""

from pathlib import Path

import vllm
from vllm import EngineArgs

from dart_streams.policy.rendering import UnsupportedModel


def check(model_dir: Path) -> int:
    """Return the tokens of a model's context, if vLLM has an implementation of its own of it, which takes images.

    Its fallback, which runs transformers' code, is not counted: nothing of it was tried here. Raises
    :class:`UnsupportedModel` if it has none.
    """
    try:
        config = EngineArgs(
            model=str(model_dir), load_format="dummy", dtype="float32", model_impl="vllm", skip_mm_profiling=True
        ).create_model_config()
    except (ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[:3]
        raise UnsupportedModel(f"vLLM {vllm.__version__} does not serve this model: {' '.join(reason)}") from None
    if not config.is_multimodal_model or config.is_encoder_decoder:
        raise UnsupportedModel(
            f"vLLM {vllm.__version__} serves {', '.join(config.architectures)}, but not as a decoder that takes images"
        )
    return int(config.max_model_len)
