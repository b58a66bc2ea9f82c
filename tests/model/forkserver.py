"""Processes of the model side that begin with the trainer's modules imported: torch and transformers take seconds."""

import multiprocessing
import threading

spawning = multiprocessing.get_context("forkserver")
spawning.set_forkserver_preload(["trainer.main", "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"])
POLLING = threading.Lock()
"""A start polls all children: an exit status that two threads read at once is lost to one of them, which gets 255."""
