"""OSWorld's own runner plays ten of its tasks on our desktops, from a checkout without a changed line.

The runner is ``scripts/python/run_multienv_uitars15_v1.py`` with its UI-TARS agent. A scripted model behind an
OpenAI-compatible endpoint answers the agent. It takes eight minutes, most of which the runner sleeps.

In May 2026 the runner gave an argument ``vm_ip`` to the agent's ``reset``, which does not take it, with any provider.
The test lets the agent ignore it.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dart_desktops.osworld import sidecar
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.osworld.agent_side import STUBS, chat_answer, thought
from plugins.desktops.tests.served_desktops import served
from tests.answering import answering

pytestmark = [pytest.mark.asyncio, osworld_needs.EVALUATORS, osworld_needs.CHECKOUT, pytest.mark.timeout(1800)]
CHECKOUT = Path(os.environ.get("DART_OSWORLD", ""))
RUNNER = CHECKOUT / "scripts/python/run_multienv_uitars15_v1.py"
PROVIDER = Path(__file__).resolve().parents[4] / "examples/osworld_provider.py"
LIMIT_S = 1500
DESKTOPS = 5
MODEL = "scripted"
IGNORE_ADDRESS = """
from mm_agents.uitars15_v1 import UITARSAgent
reset = UITARSAgent.reset
UITARSAgent.reset = lambda self, runtime_logger=None, vm_ip=None: reset(self, runtime_logger)
"""


def in_terminal(command: str) -> list[str]:
    """Return answers that execute a command in a terminal.

    The agent types by the clipboard and Ctrl+V, which a shell takes as a quotation of the next key.
    """
    keys = ["ctrl u", "ctrl u", "ctrl shift v", "enter"]
    return [
        "hotkey(key='ctrl alt t')",
        "wait()",
        f"type(content='{command}')",
        *(f"hotkey(key='{key}')" for key in keys),
    ]


def setting(schema: str, key: str, value: str) -> list[str]:
    """Return answers that change a setting."""
    return in_terminal(f'gsettings set org.gnome.{schema} {key} "{value}"')


IMPOSSIBLE = ["call_user()"] * 4
"""The agent waits after the first three, and then gives up."""
ANSWERS = {
    "bedcedc4-4d72-425e-ad62-21960b11fe0d": setting("desktop.session", "idle-delay", "0"),
    "ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3": setting(
        "shell", "favorite-apps", "[\\'google-chrome.desktop\\', \\'thunderbird.desktop\\']"
    ),
    "f9be0997-4b7c-45c5-b05c-4612b44a6118": setting("desktop.notifications", "show-banners", "false"),
    "e0df059f-28a6-4169-924f-b9623e7184cc": in_terminal("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"),
    "3ce045a0-877b-42aa-8d2c-b4a863336ab8": setting("desktop.interface", "text-scaling-factor", "1.5"),
    "a4d98375-215b-4a4d-aee9-3d4370fccc41": setting("desktop.screensaver", "lock-enabled", "true"),
    "a462a795-fdc7-4b23-b689-e8b6df786b78": IMPOSSIBLE,
    "b3d4a89c-53f2-4d6b-8b6a-541fb5d205fa": IMPOSSIBLE,
    "fe41f596-a71b-4c2f-9b2f-9dcd40b568c3": IMPOSSIBLE,
    "4783cc41-c03c-4e1b-89b4-50658f642bd5": IMPOSSIBLE,
}
"""Tasks of the application `os`, with a model's answers."""
FEASIBLE = [task for task, script in ANSWERS.items() if script is not IMPOSSIBLE]


def instruction(task: str) -> str:
    return str(json.loads((CHECKOUT / f"evaluation_examples/examples/os/{task}.json").read_text())["instruction"])


class ScriptedModel:
    """Answers by the task whose instruction the prompt has; ``solving`` leaves out the deeds of feasible tasks."""

    def __init__(self, solving: bool) -> None:
        self.answers = {
            instruction(task): [
                *(script if solving or script is IMPOSSIBLE else ["wait()"]),
                "finished(content='done')",
            ]
            for task, script in ANSWERS.items()
        }
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request for a chat completion."""
        messages = (await request.json())["messages"]
        prompt = " ".join(part.get("text", "") for part in messages[1]["content"])
        (script,) = [script for text, script in self.answers.items() if text in prompt]
        self.asked += 1
        return chat_answer(thought(script[sum(message["role"] == "assistant" for message in messages)]))


async def run(folder: Path, tasks: Sequence[str], variables: dict[str, str]) -> dict[str, float]:
    """Run OSWorld's runner in a folder; return the result of each task."""
    (folder / "logs").mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(STUBS + IGNORE_ADDRESS)
    (folder / "tasks.json").write_text(json.dumps({"os": list(tasks)}))
    options: dict[str, Any] = {
        "provider_name": "docker",
        "model": MODEL,
        "num_envs": DESKTOPS,
        "client_password": "password",
        "screen_width": 1280,
        "screen_height": 720,
        "test_config_base_dir": CHECKOUT / "evaluation_examples",
        "test_all_meta_path": folder / "tasks.json",
        "result_dir": folder / "results",
    }
    command = [sidecar.ENVIRONMENT / "bin" / "python", PROVIDER, RUNNER]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    # The runner imports the provider of AWS, whatever it uses.
    amazon = {f"AWS_{name}": "none" for name in ("REGION", "SUBNET_ID", "SECURITY_GROUP_ID")}
    environment = {**os.environ, **amazon, **variables, "no_proxy": "127.0.0.1", "PYTHONPATH": f"{folder}:{CHECKOUT}"}
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            await asyncio.wait_for(process.wait(), LIMIT_S)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    results = (folder / "results").glob(f"pyautogui/screenshot/{MODEL}/os/*/result.txt")
    return {path.parent.name: float(path.read_text()) for path in results}


async def test_osworlds_runner_plays_ten_of_its_tasks_unchanged(tmp_path):
    (tmp_path / "served").mkdir()
    async with served(tmp_path / "served", (1280, 720), slots=DESKTOPS, lease_s=60.0, ask_token=False) as desktops:
        for solving in (True, False):
            model, folder = ScriptedModel(solving), tmp_path / f"solving-{solving}"
            wanted = {task: 1.0 for task in ANSWERS} if solving else dict.fromkeys(FEASIBLE, 0.0)
            async with answering(model.answer) as url:
                variables = {"DART_DESKTOPS": desktops.leases, "DOUBAO_API_URL": url, "DOUBAO_API_KEY": "none"}
                scores = await run(folder, list(wanted), variables)
            assert scores == wanted, re.sub("\x1b.*?m", "", (folder / "output").read_text())[-5000:]
            assert model.asked == sum(len(model.answers[instruction(task)]) for task in wanted if task in FEASIBLE) + (
                4 * (len(wanted) - len(FEASIBLE))
            )
