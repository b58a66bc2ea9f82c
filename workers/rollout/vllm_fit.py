"""Check that vLLM supports a model, without building an engine. Imports vllm, so import it within functions."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import vllm
from transformers import AutoModelForImageTextToText
from vllm import EngineArgs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader.utils import initialize_model

from dart_streams.policy import weights
from dart_streams.policy.fit import load_configuration
from dart_streams.policy.rendering import UnsupportedModel

NOT_BUILT = (RuntimeError, AssertionError, ValueError, LookupError, TypeError, AttributeError, OSError, ImportError)


def check(model_dir: Path) -> int:
    """Return the context length of a model that vLLM serves natively with images; raise :class:`UnsupportedModel`."""
    arguments = EngineArgs(
        model=str(model_dir), load_format="dummy", dtype="float32", model_impl="vllm", skip_mm_profiling=True
    )
    try:
        config = arguments.create_model_config()
    except (ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[:3]
        raise UnsupportedModel(f"vLLM {vllm.__version__} does not serve this model: {' '.join(reason)}") from None
    if not config.is_multimodal_model or config.is_encoder_decoder:
        raise UnsupportedModel(
            f"vLLM {vllm.__version__} serves {', '.join(config.architectures)}, but not as a decoder with images"
        )
    refuse_other_names(arguments, model_dir)
    return int(config.max_model_len)


def refuse_other_names(arguments: EngineArgs, model_dir: Path) -> None:
    """Raise :class:`UnsupportedModel` if vLLM does not take weights by the names of versions.

    Both models are built without memory. Where that is not possible, as without a GPU, a worker refuses at its start.
    """
    try:
        config = arguments.create_engine_config()
        with one_rank(config), torch.device("meta"):
            ours = weights.own_state(AutoModelForImageTextToText.from_config(load_configuration(model_dir)))
            theirs = initialize_model(config)
            wanted = {name for name, _ in theirs.named_parameters()}
            try:
                loaded = theirs.load_weights(iter(ours.items()))
                reason = f"no tensor for {min(lacking)}" if (lacking := wanted - (loaded or wanted)) else ""
            except (ValueError, LookupError) as error:
                reason = str(error).partition("\n")[0].partition(". ")[0]
    except NOT_BUILT:
        return
    if reason:
        raise UnsupportedModel(
            f"vLLM {vllm.__version__} has other names for weights of this model than the trainer publishes: {reason}"
        )


@contextlib.contextmanager
def one_rank(config: VllmConfig) -> Iterator[None]:
    """Have a job of one rank, which layers of vLLM ask for; leave nothing of it, and no cached layers."""
    with tempfile.TemporaryDirectory(prefix="names-") as folder, set_current_vllm_config(config):
        try:
            parallel_state.init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
            parallel_state.ensure_model_parallel_initialized(1, 1)
            yield
        finally:
            rotary_embedding._ROPE_DICT.clear()
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
