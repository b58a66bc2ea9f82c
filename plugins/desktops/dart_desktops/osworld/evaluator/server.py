"""The sidecar: a line of JSON in, a line out; each evaluation has its own processes, which end at its deadline.

The packages are imported once, and each request forks. So evaluations share the packages' memory, and none affects the
next. Of each, a supervisor has the way out; a first process of its name spaces, and the evaluation, have none.
"""

import gc
import json
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

from dart_desktops.osworld.evaluator import import_stubs, isolation, scoring

ANSWER_BYTES = 2**16
REASON = 600
"""Characters of a reason, so that a line is written at once (PIPE_BUF)."""
OF_CONTENT = {signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Signals by which a file ends its parser: a limit that binds that file, or a defect that it meets."""


def serve(answers: int, listeners: int, refusals: bytes) -> None:
    """Serve until the requests end; running evaluations are killed then, as their name spaces end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Reaps those that ended.
    gc.freeze()
    for line in sys.stdin.buffer:
        if not os.fork():
            run_evaluation(json.loads(line), answers, listeners, refusals)


def run_evaluation(request: dict[str, Any], answers: int, listeners: int, refusals: bytes) -> None:
    """Evaluate in a child process, kill it at its deadline, write the result, and end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        isolation.end_with_parent()
        reader, writer = os.pipe()
        opened = isolation.enter_name_spaces(isolation.CACHE / request["folder"], set(request["ports"]))
        with socket.socket(fileno=listeners) as way:
            socket.send_fds(way, [str(request["id"]).encode()], [one.fileno() for one in opened])
        for one in opened:
            one.close()
        if not (first := os.fork()):
            begin_evaluation(request, writer, refusals)
        os.close(writer)
        result = read_result(reader, first, float(request["timeout_s"]))
    except Exception as error:  # noqa: BLE001 - whatever fails here is this evaluation's fault
        result = make_fault(f"{type(error).__name__}: {error}")
    write_line(answers, {"id": request["id"], **result})
    os._exit(0)


def begin_evaluation(request: dict[str, Any], writer: int, refusals: bytes) -> None:
    """Be the first process of the name spaces, whose end ends all others; say by its exit code how it ended.

    The evaluation is a process of its own, since the kernel exempts the first one of most signals.
    """
    isolation.close_descriptors(writer)
    os.setsid()
    isolation.give_up_rights(refusals)
    if not (evaluation := os.fork()):
        isolation.set_limits(request["cpu_s"])
        os.chdir(isolation.TASK)
        os.write(writer, json.dumps(scoring.answer(request)).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    while (ended := os.wait())[0] != evaluation:
        pass
    code = os.waitstatus_to_exitcode(ended[1])
    os._exit(code if code >= 0 else 128 - code)


def read_result(reader: int, first: int, timeout_s: float) -> dict[str, Any]:
    """Return the result that an evaluation writes until its deadline, and end its processes."""
    written, deadline = b"", time.monotonic() + timeout_s
    watched = [reader, ended := os.pidfd_open(first)]
    while ready := select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0]:
        if reader not in ready or written.endswith(b"\n"):
            break
        written += (part := os.read(reader, ANSWER_BYTES))
        if not part or len(written) > ANSWER_BYTES:
            watched = [ended]
    os.kill(first, signal.SIGKILL)
    if not ready:
        return make_fault("the evaluation is not done at its deadline")
    if written:
        return check_result(written) or make_fault("the evaluation wrote something else than a result")
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    if code - 128 in OF_CONTENT:
        name = signal.Signals(code - 128).name
        return {"score": 0.0, "reason": f"the result ends its parser by {name} (SIGXCPU: it computes too long)"}
    return make_fault(f"the evaluator's process ended: {code}")


def make_fault(reason: str) -> dict[str, Any]:
    """Return the result of an evaluation without a score."""
    return {"score": None, "reason": reason[:REASON]}


def check_result(written: bytes) -> dict[str, Any] | None:
    """Return a result if it has the form of one, else None: what parses files of the policy may write anything."""
    try:
        said = json.loads(written)
        score = said["score"]
        if score is not None and not (math.isfinite(score := float(score)) and 0 <= score <= 1):
            return None
        return {"score": score, "reason": str(said["reason"])[:REASON]}
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def write_line(descriptor: int, data: dict[str, Any]) -> None:
    """Write a line of JSON at once, so that lines of several processes do not mix (PIPE_BUF)."""
    os.write(descriptor, json.dumps(data, ensure_ascii=False).encode(errors="replace") + b"\n")


def main() -> None:
    """Import the package, write its names, and serve; output of the package goes to stderr.

    Arguments: the descriptor by which listeners are sent, the filter of system calls, and the folder of a checkout
    whose package is imported instead of the installed one.
    """
    listeners, refusals = int(sys.argv[2]), bytes.fromhex(sys.argv[3])
    sys.path[:0] = checkout = sys.argv[4:]
    answers = os.dup(1)
    os.dup2(2, 1)
    import_stubs.install()
    try:
        try_name_spaces()
        ready = scoring.load_package(from_checkout=bool(checkout))
    except Exception as error:  # noqa: BLE001 - any error of the package's import
        traceback.print_exc()
        write_line(answers, {"broken": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    write_line(answers, ready)
    serve(answers, listeners, refusals)


def try_name_spaces() -> None:
    """Raise OSError if this system refuses an evaluation's name spaces."""
    reader, writer = os.pipe()
    if not (trial := os.fork()):
        try:
            isolation.enter_name_spaces()
        except OSError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    refused = os.read(reader, ANSWER_BYTES).decode()
    os.waitpid(trial, 0)
    if refused:
        raise PermissionError(f"name spaces are refused here ({refused})")
