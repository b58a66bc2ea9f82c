"""The sidecar: a line of JSON in, a line out; each evaluation has its own process, which is killed at its deadline.

The packages are imported once, and each request forks. So evaluations share the packages' memory, and none affects the
next. A second process waits for each, so that evaluations run concurrently.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from workers.env.backends.osworld.evaluator import import_stubs, scoring

KILL_ON_PARENTS_END = 1
"""PR_SET_PDEATHSIG of prctl."""
forking = multiprocessing.get_context("fork")


def serve(answers: int) -> None:
    """Serve until the requests end; running evaluations are killed then."""
    signal.signal(signal.SIGCHLD, lambda *_: multiprocessing.active_children())  # reaps those that ended
    for line in sys.stdin.buffer:
        forking.Process(target=run_evaluation, args=(json.loads(line), answers)).start()
    for supervisor in multiprocessing.active_children():
        supervisor.kill()


def run_evaluation(request: dict[str, Any], answers: int) -> None:
    """Evaluate in a child process, kill it at its deadline, and write the result."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_with_parent()
    reader, writer = forking.Pipe(duplex=False)
    evaluation = forking.Process(target=evaluate_here, args=(request, writer))
    evaluation.start()
    assert evaluation.pid is not None
    writer.close()
    answer: dict[str, Any] | None = {"fault": "the evaluation is not done at its deadline"}
    with contextlib.suppress(EOFError):
        if reader.poll(float(request["timeout_s"])):
            answer = None
            answer = reader.recv()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(evaluation.pid, signal.SIGKILL)
    evaluation.kill()
    evaluation.join()
    if answer is None:
        answer = {"fault": f"the evaluator's process ended: {evaluation.exitcode}"}
    write_line(answers, {"id": request["id"], **answer})


def evaluate_here(request: dict[str, Any], writer: Connection) -> None:
    """Evaluate in this child process, and send the result."""
    os.setsid()
    end_with_parent()
    seconds = int(float(request["timeout_s"])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    writer.send(scoring.answer(request))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(KILL_ON_PARENTS_END, signal.SIGKILL)


def write_line(descriptor: int, data: dict[str, Any]) -> None:
    """Write a line of JSON at once, so that lines of several processes do not mix (PIPE_BUF)."""
    os.write(descriptor, json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n")


def main() -> None:
    """Import the package, write its names, and serve; output of evaluators goes to stderr.

    A second argument is the folder of a checkout, whose package is imported instead of the installed one.
    """
    sys.path[:0] = checkout = sys.argv[2:]
    answers = os.dup(1)
    os.dup2(2, 1)
    import_stubs.install()
    try:
        ready = scoring.load_package(from_checkout=bool(checkout))
    except Exception as error:  # noqa: BLE001 - any error of the package's import
        traceback.print_exc()
        write_line(answers, {"broken": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    write_line(answers, ready)
    serve(answers)
