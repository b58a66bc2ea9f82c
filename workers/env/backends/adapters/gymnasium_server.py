"""One Gymnasium environment at a time, in a Python of its own: a line of JSON in, a line out. No project module.

Requests are ``reset`` (``id``, ``seed``, ``options``), ``step`` (``action``) and ``stop``; an answer has ``image``
(base64 of a PNG), ``instruction``, ``reward`` and ``done``, or ``fault``. What environments print goes to the errors.
"""

import base64
import importlib
import io
import json
import os
import sys
import traceback
from typing import Any

BROWSERGYM = "browsergym"


class EnvironmentServer:
    """Keeps the environment of the last id, for its next episode."""

    def __init__(self, packages: list[str], browser: str) -> None:
        import gymnasium

        self.gymnasium = gymnasium
        for package in packages:
            importlib.import_module(package)
        self.coordinates = any(package.startswith(BROWSERGYM) for package in packages)
        if self.coordinates and browser:
            use_browser(browser)
        self.id = ""
        self.env: Any = None
        self.instruction = ""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request."""
        if request["call"] == "reset":
            return self.reset(request["id"], request["seed"])
        observation, reward, terminated, truncated, _ = self.env.step(request["action"])
        return self.shown(observation, float(reward), bool(terminated or truncated))

    def reset(self, name: str, seed: int) -> dict[str, Any]:
        """Make the environment of this id, if there is another, and reset it."""
        if name != self.id:
            self.close()
            self.env = self.gymnasium.make(name, disable_env_checker=True, **self.settings()).unwrapped
            self.id = name
        observation, _ = self.env.reset(seed=seed)
        self.instruction = instruction_of(observation) or name
        return self.shown(observation, 0.0, False)

    def settings(self) -> dict[str, Any]:
        """Return BrowserGym's settings: actions by pixels. Other environments are made as they are."""
        if not self.coordinates:
            return {}
        from browsergym.core.action.highlevel import HighLevelActionSet

        return {"action_mapping": HighLevelActionSet(subsets=["coord"], strict=False).to_python_code}

    def shown(self, observation: Any, reward: float, done: bool) -> dict[str, Any]:
        """Return the screen that an observation has, or what the environment renders."""
        from PIL import Image

        pixels: Any = observation.get("screenshot") if isinstance(observation, dict) else observation
        if getattr(pixels, "ndim", 0) != 3:
            pixels = self.env.render()
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
        image = base64.b64encode(buffer.getvalue()).decode()
        return {"image": image, "instruction": self.instruction, "reward": reward, "done": done}

    def close(self) -> None:
        """Close the environment, if there is one."""
        env, self.env, self.id = self.env, None, ""
        if env is not None:
            env.close()


def instruction_of(observation: Any) -> str:
    """Return BrowserGym's goal, in words; empty for observations without one."""
    return str(observation.get("goal") or "") if isinstance(observation, dict) else ""


def use_browser(path: str) -> None:
    """Let Playwright start this browser wherever none is named: BrowserGym starts two, and takes a path for one."""
    from playwright.sync_api import BrowserType

    launch = BrowserType.launch
    BrowserType.launch = lambda self, **options: launch(self, **{"executable_path": path} | options)


def main() -> None:
    """Serve requests until they end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    packages, browser = json.loads(sys.argv[1])
    server = EnvironmentServer(packages, browser)
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        try:
            found = server.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever another project's environment raises is its fault
            traceback.print_exc()
            found = {"fault": f"{type(error).__name__}: {error}"[:1000]}
        answers.write(json.dumps(found) + "\n")
        answers.flush()
    server.close()


if __name__ == "__main__":
    main()
