"""``dart-streams worker rollout`` whose engine fails at its next step: ``failing_engine.py COMMAND…``.

After SIGUSR1 the step asks for more memory than there is, after SIGUSR2 it never comes back.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable

import torch

from workers.rollout import vllm_settings

TOO_LARGE = 1 << 60
"""Bytes."""


def hang() -> None:
    threading.Event().wait()


if __name__ == "__main__":
    os.environ.update(vllm_settings.engine_environment(os.environ))
    from workers.rollout.vllm_core import VllmCore

    wanted: list[Callable[[], None]] = []
    step = VllmCore.step

    def failing(core: VllmCore) -> None:
        while wanted:
            wanted.pop()()
        step(core)

    VllmCore.step = failing  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(lambda: torch.empty(TOO_LARGE, dtype=torch.uint8)))
    signal.signal(signal.SIGUSR2, lambda *_: wanted.append(hang))

    from console.cli.main import main

    # A supervisor gives the program's path as well.
    sys.argv = ["dart-streams", *sys.argv[2:]]
    main()
