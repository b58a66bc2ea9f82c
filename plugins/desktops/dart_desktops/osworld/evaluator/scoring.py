"""One evaluation by OSWorld's own code on a prepared machine."""

import hashlib
import http.client
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from dart_desktops.osworld.evaluator import faults, isolation, network

RETRIES = 1
"""OSWorld's three tries of 5 s for a missing file are for machines that are still starting."""
NOT_FETCHED = (ConnectionError, TimeoutError, http.client.HTTPException, requests.RequestException)
"""Errors of a request; those of playwright are known by their module."""
OF_THE_TASK = ("rule", "cloud_file", "cache_file")
"""Beginnings of the types of expected states that are not the machine's."""


class UnreadableState(Exception):
    """What the machine gave cannot be read, as by a file that the policy spoiled: its score is 0."""


def load_package(from_checkout: bool) -> dict[str, Any]:
    """Import OSWorld's package; return where it is from, and the names of its metrics and getters."""
    import tldextract
    from desktop_env import desktop_env, evaluators
    from desktop_env.evaluators import getters, metrics

    # With its own list of public suffixes, without a download.
    tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())
    assert desktop_env.DesktopEnv
    folder = Path(evaluators.__path__[0])
    return {
        "origin": digest_of(folder) if from_checkout else f"package {importlib.metadata.version('desktop-env')}",
        "metrics": sorted(name for name in vars(metrics) if callable(getattr(metrics, name))),
        "getters": sorted(name.removeprefix("get_") for name in vars(getters) if name.startswith("get_")),
    }


def digest_of(folder: Path) -> str:
    """Return a short digest of a checkout's evaluators."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return f"checkout {digest.hexdigest()[:8]}"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the ``score``, None for a fault, and the ``reason`` of a fault or of an unreadable result.

    This changes the process, which serves one evaluation only.
    """
    unreadable: list[str] = []
    try:
        score = evaluate(request, unreadable)
    except (UnreadableState, UnboundLocalError) as error:  # OSWorld's code ends so for a missing file and "or".
        score = 0.0
        unreadable.append(str(error))
    except Exception as error:  # noqa: BLE001 - any other error of OSWorld's code is this evaluation's fault
        faults.recorded.append(f"{type(error).__name__}: {error}")
    if faults.recorded:
        return {"score": None, "reason": "; ".join(dict.fromkeys(faults.recorded))}
    return {"score": score, "reason": "; ".join(unreadable)}


def evaluate(request: dict[str, Any], unreadable: list[str]) -> float:
    """Return OSWorld's score of the machine's present state; reasons of metrics that are worth 0 are appended."""
    network.guard(isolation.LOOPBACK, request["ports"], request["host"], request["token"])
    machine = make_environment(request)
    machine.result_getter = wrap_each(machine.result_getter, guard_getter)
    machine.expected_getter = wrap_each(machine.expected_getter, guard_getter)
    machine.metric = wrap_each(machine.metric, lambda metric: guard_metric(metric, unreadable))
    return float(machine.evaluate())


def wrap_each(functions: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return a function as ``wrap`` returns it, or each of a list."""
    if isinstance(functions, list):
        return [wrap_each(one, wrap) for one in functions]
    return functions and wrap(functions)


def guard_getter(getter: Any) -> Any:
    """Return a getter that raises UnreadableState for a state of the machine that it cannot read."""

    def get(machine: Any, config: dict[str, Any]) -> Any:
        try:
            return getter(machine, config)
        except FileNotFoundError:
            raise  # OSWorld's own rule for it is 0.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a parser raises
            raise_fault(error, config["type"].startswith(OF_THE_TASK))
            raise UnreadableState(describe(getter, error)) from None

    return get


def guard_metric(metric: Any, unreadable: list[str]) -> Any:
    """Return a metric that is worth 0 where it raises, or returns no score."""

    def measure(*states: Any, **options: Any) -> float:
        try:
            value = metric(*states, **options)
            if 0 <= (score := float(value)) <= 1:
                return score
            raise ValueError(f"its score is {value!r}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a parser raises
            raise_fault(error)
            unreadable.append(describe(metric, error))
            return 0.0

    return measure


def raise_fault(error: BaseException, of_the_task: bool = False) -> None:
    """Raise an error again that content cannot cause: a request, a missing module, arguments that do not fit.

    Readers of formats raise ImportError without a module's name for a format that they only know by sight.
    """
    entered = error.__traceback__ is not None and error.__traceback__.tb_next is not None
    if (
        of_the_task
        or isinstance(error, NOT_FETCHED)
        or type(error).__module__.startswith("playwright.")
        or (isinstance(error, ImportError) and error.name)
        or (isinstance(error, TypeError) and not entered)
    ):
        raise error


def describe(function: Any, error: BaseException) -> str:
    """Return the reason why a function's result is not usable."""
    return f"{function.__name__}: {type(error).__name__}: {error}"[:300]


def make_environment(request: dict[str, Any]) -> Any:
    """Return OSWorld's environment for an evaluation, without a provider and without steps."""
    from desktop_env.controllers.python import PythonController
    from desktop_env.controllers.setup import SetupController
    from desktop_env.desktop_env import DesktopEnv

    class Controller(SetupController):
        def setup(self, *_: Any, **__: Any) -> bool:
            """Do nothing: the worker has executed the steps before the evaluation."""
            return True

    class ScoredDesktop(DesktopEnv):
        def __init__(self) -> None:
            """Skip OSWorld's setup."""

    cache = isolation.TASK
    server, chromium, vlc = request["ports"]
    machine = ScoredDesktop()
    machine.vm_ip, machine.server_port = isolation.LOOPBACK, server
    machine.chromium_port, machine.vlc_port = chromium, vlc
    machine.controller = PythonController(isolation.LOOPBACK, server)
    machine.controller.retry_times, machine.controller.retry_interval = RETRIES, 0
    machine.setup_controller = Controller(isolation.LOOPBACK, *request["ports"], str(cache))
    machine.task_id, machine.instruction, machine.config = request["task_id"], "", []
    machine.cache_dir_base, machine.cache_dir = str(cache.parent), str(cache)
    machine.client_password = ""
    machine.action_history = ["DONE"]
    machine.enable_proxy = machine.current_use_proxy = machine.is_environment_used = False
    machine.os_type, machine.action_space = "Ubuntu", "pyautogui"
    machine._traj_no, machine._step_no = 0, 1
    machine._set_evaluator_info({"evaluator": request["evaluator"]})
    return machine
