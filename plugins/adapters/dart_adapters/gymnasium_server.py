"""Server of one Gymnasium environment in a separate Python, without modules of this project: JSON lines in and out.

Requests are ``reset`` (``id``, ``seed``) and ``step`` (``action``). A response has ``image`` (base64 of a PNG),
``instruction``, ``reward`` and ``done``, or ``fault``. Output of environments goes to stderr.
"""

import base64
import importlib
import io
import json
import math
import os
import sys
import traceback
from typing import Any

BROWSERGYM = "browsergym"
MAX_MS = 60_000.0
"""Time limit of a browser's start and of a page, below a reset's; 5 s of BrowserGym are few on a busy machine."""


class EnvironmentServer:
    """Keeps the environment of the last id for the next episode."""

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
        """Execute a request."""
        if request["call"] == "reset":
            return self.reset(request["id"], request["seed"])
        observation, reward, terminated, truncated, _ = self.env.step(request["action"])
        try:
            value = math.nan if isinstance(reward, str) else float(reward)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"the reward is {str(reward)[:100]}: it is a finite number")
        return self.shown(observation, value, bool(terminated or truncated))

    def reset(self, name: str, seed: int) -> dict[str, Any]:
        """Reset the environment of this id, and create it if another one is open."""
        if name != self.id:
            self.close()
            self.env = self.make(name)
            self.id = name
        observation, _ = self.env.reset(seed=seed)
        goal = observation.get("goal") if isinstance(observation, dict) else None  # BrowserGym's.
        self.instruction = encodable_text(str(goal or name))
        return self.shown(observation, 0.0, False)

    def make(self, name: str) -> Any:
        """Return a new environment, which renders pixels if it can and has no screen among its observations."""
        settings = {"disable_env_checker": True, **self.settings()}
        env = self.gymnasium.make(name, **settings)
        spaces = getattr(env.observation_space, "spaces", None)
        space = spaces.get("screenshot") if isinstance(spaces, dict) else env.observation_space
        modes = (env.metadata or {}).get("render_modes", ())
        if len(getattr(space, "shape", None) or ()) == 3 or env.render_mode is not None or "rgb_array" not in modes:
            return env
        env.close()
        return self.gymnasium.make(name, render_mode="rgb_array", **settings)

    def settings(self) -> dict[str, Any]:
        """Return the settings for BrowserGym, which take actions in pixels; others have none."""
        if not self.coordinates:
            return {}
        from browsergym.core.action.highlevel import HighLevelActionSet

        calls = HighLevelActionSet(["coord", "chat", "custom"], custom_actions=[mouse_tripleclick, mouse_wheel])
        return {"action_mapping": calls.to_python_code, "timeout": MAX_MS}

    def shown(self, observation: Any, reward: float, done: bool) -> dict[str, Any]:
        """Return the screen of an observation, or the environment's rendering."""
        from PIL import Image

        pixels: Any = observation.get("screenshot") if isinstance(observation, dict) else observation
        if getattr(pixels, "ndim", 0) != 3:
            pixels = self.env.render()
        if getattr(pixels, "ndim", 0) != 3:
            raise ValueError("no screen: neither the observation nor its screenshot is one, and render returns none")
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
        image = base64.b64encode(buffer.getvalue()).decode()
        return {"image": image, "instruction": self.instruction, "reward": reward, "done": done}

    def close(self) -> None:
        """Close the environment, if there is one."""
        env, self.env, self.id = self.env, None, ""
        if env is not None:
            env.close()


def mouse_tripleclick(x: float, y: float, button: str = "left") -> None:
    """
    Click a mouse button three times in a row; BrowserGym runs this source beside its own.

    Examples:
        mouse_tripleclick(5, 236)
    """  # noqa: D406, D407
    x, y = map_coordinates(page, x, y)  # type: ignore[name-defined]  # noqa: F821
    page.mouse.click(x, y, button=button, click_count=3)  # type: ignore[name-defined]  # noqa: F821


def mouse_wheel(x: float, y: float, dx: float, dy: float) -> None:
    """
    Turn the wheel at a place by pixels of the page, not of a scaled screenshot as ``scroll_at`` does.

    Examples:
        mouse_wheel(5, 236, 0, 100)
    """  # noqa: D406, D407
    page.mouse.move(*map_coordinates(page, x, y))  # type: ignore[name-defined]  # noqa: F821
    page.mouse.wheel(dx, dy)  # type: ignore[name-defined]  # noqa: F821


def use_browser(path: str) -> None:
    """Make this browser Playwright's default: BrowserGym starts two, and has an option for only one."""
    from playwright.sync_api import BrowserType

    launch = BrowserType.launch
    BrowserType.launch = lambda self, **given: launch(self, **{"executable_path": path, "timeout": MAX_MS} | given)


def encodable_text(text: str) -> str:
    """Return a text with halves of characters escaped, which no JSON may contain."""
    return text.encode(errors="backslashreplace").decode()


def main() -> None:
    """Serve requests until they end."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    packages, browser = json.loads(sys.argv[1])
    server = EnvironmentServer(packages, browser)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        try:
            response = server.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - any error of a third-party environment is its fault
            traceback.print_exc()
            response = {"fault": encodable_text(f"{type(error).__name__}: {error}"[:1000])}
        answers.write(json.dumps(response) + "\n")
    server.close()


if __name__ == "__main__":
    main()
