"""One evaluation by OSWorld's own code on a prepared machine."""

import hashlib
import importlib.metadata
import math
from pathlib import Path
from typing import Any

from workers.env.backends.osworld.evaluator import faults, network

RETRIES = 1
"""OSWorld's three tries of 5 s for a missing file are for machines that are still starting."""


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
    """Return ``score`` or ``fault``; this changes the process, which serves one evaluation only."""
    try:
        score = evaluate(request)
    except Exception as error:  # noqa: BLE001 - any error of OSWorld's code is this evaluation's fault
        faults.recorded.append(f"{type(error).__name__}: {error}")
    if faults.recorded:
        return {"fault": "; ".join(dict.fromkeys(faults.recorded))[:600]}
    return {"score": score}


def evaluate(request: dict[str, Any]) -> float:
    """Return OSWorld's score of the machine's present state; raise ValueError if it is invalid."""
    host, server, chromium, vlc = (request["endpoint"][key] for key in ("host", "server", "chromium", "vlc"))
    network.guard(host, server, {server, chromium, vlc}, request["endpoint"].get("token", ""))
    score = make_environment(request).evaluate()
    if score is None or not math.isfinite(value := float(score)) or not 0 <= value <= 1:
        raise ValueError(f"the evaluator's score is {score!r}")
    return value


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

    endpoint, cache = request["endpoint"], Path(request["cache"])
    machine = ScoredDesktop()
    machine.vm_ip, machine.server_port = endpoint["host"], endpoint["server"]
    machine.chromium_port, machine.vlc_port = endpoint["chromium"], endpoint["vlc"]
    machine.controller = PythonController(endpoint["host"], endpoint["server"])
    machine.controller.retry_times, machine.controller.retry_interval = RETRIES, 0
    machine.setup_controller = Controller(
        endpoint["host"], endpoint["server"], endpoint["chromium"], endpoint["vlc"], str(cache)
    )
    machine.task_id, machine.instruction, machine.config = request["task_id"], "", []
    machine.cache_dir_base, machine.cache_dir = str(cache.parent), str(cache)
    machine.client_password = ""
    machine.action_history = ["DONE"]
    machine.enable_proxy = machine.current_use_proxy = machine.is_environment_used = False
    machine.os_type, machine.action_space = "Ubuntu", "pyautogui"
    machine._traj_no, machine._step_no = 0, 1
    machine._set_evaluator_info({"evaluator": request["evaluator"]})
    return machine
