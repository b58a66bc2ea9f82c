"""vLLM's prefix cache and encoder cache: encodings counted, and both emptied when weights switch."""

from typing import Any

from opentelemetry import metrics
from vllm.v1.core.sched import output
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.request import Request

from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter

encodings = ObservedCounter(metrics.get_meter(names.METER), names.ROLLOUT_ENCODINGS)


class EngineCaches:
    """The caches of an engine in this process; ``encodings`` counts the screenshots given to the vision tower."""

    def __init__(self, llm: LLMEngine) -> None:
        keep_cached_images()
        self.llm = llm
        self.encodings = 0
        core: Any = llm.engine_core
        manager = core.engine_core.scheduler.encoder_cache_manager
        self.capacity: int = manager.cache_size
        """Embeddings that the encoder cache holds."""
        allocate = manager.allocate

        def count_and_allocate(request: Request, input_id: int) -> None:
            self.encodings += 1
            encodings.add(1)
            allocate(request, input_id)

        manager.allocate = count_and_allocate

    def drop_prefixes(self) -> None:
        """Empty the prefix cache before weights change; requests in flight are prefilled again."""
        if not self.llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not empty its prefix cache, so keys of the old weights would be read")

    def drop_encodings(self) -> None:
        """Empty the encoder cache: the vision tower's weights may have changed."""
        self.llm.reset_encoder_cache()


def keep_cached_images() -> None:
    """Let vLLM pass on the pixels of images that the prefix cache covers.

    vLLM 0.32 leaves them out, and fails when it has to compute such a request again: after a preemption, or a switch of
    weights. Within one process they are not copied.
    """
    output.strip_covered_mm_data = lambda features, *_given, **_named: features
