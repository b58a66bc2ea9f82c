"""Check that vLLM supports a model, without building an engine. Imports vllm, so import it within functions."""

from pathlib import Path

import vllm
from vllm import EngineArgs

from dart_streams.policy.rendering import UnsupportedModel


def check(model_dir: Path) -> int:
    """Return the context length of a model that vLLM serves natively with images; raise :class:`UnsupportedModel`."""
    try:
        config = EngineArgs(
            model=str(model_dir), load_format="dummy", dtype="float32", model_impl="vllm", skip_mm_profiling=True
        ).create_model_config()
    except (ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[:3]
        raise UnsupportedModel(f"vLLM {vllm.__version__} does not serve this model: {' '.join(reason)}") from None
    if not config.is_multimodal_model or config.is_encoder_decoder:
        raise UnsupportedModel(
            f"vLLM {vllm.__version__} serves {', '.join(config.architectures)}, but not as a decoder with images"
        )
    return int(config.max_model_len)
