"""Processes of the model side that begin with torch, transformers and vLLM imported, which takes longer than a test."""

import multiprocessing
import threading

spawning = multiprocessing.get_context("forkserver")
spawning.set_forkserver_preload(["tests.model.preloaded"])
POLLING = threading.Lock()
"""A start polls all children: an exit status that two threads read at once is lost to one of them, which gets 255."""
