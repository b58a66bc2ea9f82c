"""An engine that leaves nothing behind in the process of the tests."""

from typing import Any


async def stop_engine(engine: Any) -> None:
    """Stop an engine, and have vLLM leave its process groups, for those of the next."""
    from vllm.distributed import parallel_state

    await engine.stop()
    parallel_state.destroy_model_parallel()
    if parallel_state._WORLD is not None:
        parallel_state._WORLD.destroy()
    parallel_state._WORLD = None
