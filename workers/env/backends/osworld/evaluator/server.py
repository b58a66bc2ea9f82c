"""The sidecar: a line of JSON in, a line out; each evaluation has its own process, which is killed at its deadline.

The packages are imported once, and each request forks. So evaluations share the packages' memory, and none affects the
next.
"""

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from typing import Any

from workers.env.backends.osworld.evaluator import import_stubs, scoring

KILL_ON_PARENTS_END = 1
"""PR_SET_PDEATHSIG of prctl."""
LINE_BYTES = 2**22


class RunningEvaluation:
    """A child process with its output so far."""

    def __init__(self, request_id: Any, pid: int, pipe: int, deadline: float) -> None:
        self.request_id, self.pid, self.pipe, self.deadline = request_id, pid, pipe, deadline
        self.output = b""


class EvaluationServer:
    """Reads requests, starts evaluations, and writes their results as they end."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.running: dict[int, RunningEvaluation] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.unread = b""

    def run(self) -> None:
        """Serve until the requests end; running evaluations are killed then."""
        while True:
            deadlines = [evaluation.deadline for evaluation in self.running.values()]
            wait_s = max(min(deadlines) - time.monotonic(), 0) if deadlines else None
            for key, _ in self.selector.select(wait_s):
                if key.fd != self.requests:
                    self._hear(self.running[key.fd])
                elif not self._read_requests():
                    for evaluation in list(self.running.values()):
                        self._end(evaluation, {"fault": "the sidecar ends"})
                    return
            for evaluation in list(self.running.values()):
                if time.monotonic() >= evaluation.deadline:
                    self._end(evaluation, {"fault": "the evaluation is not done at its deadline"})

    def _read_requests(self) -> bool:
        if not (data := os.read(self.requests, LINE_BYTES)):
            return False
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            self._start(json.loads(line))
        return True

    def _start(self, request: dict[str, Any]) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            evaluate_here(request, writer)
        os.close(writer)
        deadline = time.monotonic() + float(request["timeout_s"])
        self.running[reader] = RunningEvaluation(request["id"], pid, reader, deadline)
        self.selector.register(reader, selectors.EVENT_READ)

    def _hear(self, evaluation: RunningEvaluation) -> None:
        if data := os.read(evaluation.pipe, LINE_BYTES):
            evaluation.output += data
            return
        try:
            answer = json.loads(evaluation.output)
        except ValueError:
            answer = None
        self._end(evaluation, answer)

    def _end(self, evaluation: RunningEvaluation, answer: dict[str, Any] | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(evaluation.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(evaluation.pid, signal.SIGKILL)
        _, status = os.waitpid(evaluation.pid, 0)
        if answer is None:
            answer = {"fault": f"the evaluator's process ended: {os.waitstatus_to_exitcode(status)}"}
        self.selector.unregister(evaluation.pipe)
        os.close(evaluation.pipe)
        del self.running[evaluation.pipe]
        write_line(self.answers, {"id": evaluation.request_id, **answer})


def evaluate_here(request: dict[str, Any], writer: int) -> None:
    """Evaluate in this child process, write the result, and exit."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(KILL_ON_PARENTS_END, signal.SIGKILL)
        seconds = int(float(request["timeout_s"])) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        write_line(writer, scoring.answer(request))
    except BaseException:  # noqa: BLE001 - otherwise the parent's loop would continue in the child
        traceback.print_exc()
    finally:
        os._exit(0)


def write_line(descriptor: int, data: dict[str, Any]) -> None:
    """Write a line of JSON completely."""
    rest = memoryview(json.dumps(data).encode() + b"\n")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def main() -> None:
    """Import the package, write its names, and serve; output of evaluators goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    import_stubs.install()
    if len(sys.argv) > 1 and sys.argv[1]:
        sys.path.insert(0, sys.argv[1])
    try:
        ready = scoring.load_package()
    except Exception as error:  # noqa: BLE001 - any error of the package's import
        traceback.print_exc()
        write_line(answers, {"broken": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    write_line(answers, ready)
    EvaluationServer(0, answers).run()
