"""OSWorld's DesktopEnv and its UI-TARS agent, unchanged but for the provider, play on our desktops.

The published package has no runner, so the loop over steps is ours (`desktop_env_program.py`). A scripted model behind
an OpenAI-compatible endpoint answers the agent.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests import osworld_needs
from tests.answering import answering
from tests.integration.served_desktops import Served, served
from workers.env.backends.osworld import sidecar

pytestmark = [pytest.mark.asyncio(loop_scope="module"), osworld_needs.EVALUATORS, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).with_name("desktop_env_program.py")
LIMIT_S = 800
APP = """
import tkinter as tk
root = tk.Tk()
root.attributes('-fullscreen', True)
text = tk.StringVar()
entry = tk.Entry(root, textvariable=text, font=('sans', 20))
entry.pack(fill='x')
shown = tk.Label(root, font=('sans', 20), anchor='nw', justify='left')
shown.pack(fill='both', expand=True)
lines, log = [], open('/tmp/events', 'w')
WHEEL = {4: ('up', 'left'), 5: ('down', 'right')}
def say(line):
    lines.append(line)
    log.write(line + chr(10))
    log.flush()
    shown['text'] = chr(10).join([str(len(lines)), *lines[-12:]])
def button(event):
    kind = 'wheel ' + WHEEL[event.num][event.state & 1] if event.num in WHEEL else 'press %d' % event.num
    say('%s %d %d' % (kind, event.x_root, event.y_root))
root.bind_all('<Button>', button)
root.bind_all('<ButtonRelease>', lambda e: e.num in WHEEL or say('release %d %d %d' % (e.num, e.x_root, e.y_root)))
for count, name in ((2, 'Double'), (3, 'Triple')):
    for number in (1, 3):
        root.bind_all('<%s-Button-%d>' % (name, number), lambda e, n=name.lower(): say('%s %d' % (n, e.num)), add=True)
root.bind_all('<Motion>', lambda e: say('motion %d %d' % (e.x_root, e.y_root)))
root.bind_all('<KeyPress>', lambda e: say('key ' + e.keysym))
root.bind_all('<KeyRelease>', lambda e: say('keyup ' + e.keysym))
text.trace_add('write', lambda *_: say('text ' + text.get()))
def begin():
    entry.focus_force()
    say('ready')
root.after(300, begin)
root.mainloop()
"""
"""Shows each event of mouse and keyboard on the screen, and writes it to a file."""
STEPS = [
    {"type": "launch", "parameters": {"command": ["python", "-c", APP]}},
    {
        "type": "execute",
        "parameters": {"command": "until grep -qs ready /tmp/events; do sleep 0.2; done", "shell": True},
    },
]


def seen(*lines: str) -> dict[str, Any]:
    """Return an evaluator that wants these texts among the events."""
    result = {"type": "vm_command_line", "command": ["cat", "/tmp/events"]}
    rules = {"include": list(lines), "exclude": []}
    return {"func": "check_include_exclude", "result": result, "expected": {"type": "rule", "rules": rules}}


def box(x: int, y: int) -> str:
    return f"({x},{y})"


PLAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "click": ([f"click(start_box='{box(400, 300)}')"], seen("press 1")),
    "double-click": ([f"left_double(start_box='{box(400, 300)}')"], seen("double 1")),
    "right-click": ([f"right_single(start_box='{box(400, 300)}')"], seen("press 3")),
    "drag": ([f"drag(start_box='{box(300, 300)}', end_box='{box(600, 400)}')"], seen("press 1", "release 1 59")),
    "hotkey": (["hotkey(key='ctrl shift')"], seen("key Control_L", "key Shift_L")),
    "type": (["type(content='naïve <b> 日本\\n')"], seen("text naïve <b> 日本", "key Return")),
    "scroll": ([f"scroll(start_box='{box(400, 300)}', direction='down')"], seen("wheel down")),
    "two steps": ([f"click(start_box='{box(400, 20)}')", "type(content='two')"], seen("press 1", "text two")),
    "wait": (["wait()", "hotkey(key='f5')"], seen("key F5")),
    "impossible": (["call_user()"], {"func": "infeasible"}),
}
"""Instructions with the model's answers and the evaluator."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    async with served(folder, (1280, 720), slots=2, lease_s=60.0, ask_token=False) as running:
        yield running


class ScriptedModel:
    """Answers the agent's request by the task that its prompt names, a step after the other."""

    def __init__(self) -> None:
        self.pictures: list[int] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request for a chat completion."""
        body = await request.json()
        texts = [part for message in body["messages"] for part in message["content"]]
        self.pictures.append(sum(part["type"] == "image_url" for part in texts))
        prompt = " ".join(part.get("text", "") for part in texts[:2])
        (name,) = [name for name in PLAYS if f"Do the task {name}." in prompt]
        step = sum(message["role"] == "assistant" for message in body["messages"])
        script = [*PLAYS[name][0], "finished(content='done')"]
        message = {"role": "assistant", "content": f"Thought: now.\nAction: {script[step]}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}
        )


async def run_program(mode: str, given: Any, folder: Path, **variables: str) -> list[dict[str, Any]]:
    """Run the program with OSWorld's package; return its results."""
    (folder / "given.json").write_text(json.dumps(given))
    command = [sidecar.ENVIRONMENT / "bin" / "python", PROGRAM, mode, folder / "given.json", folder / "result.json"]
    environment = {**os.environ, "no_proxy": "127.0.0.1", **variables}
    run = asyncio.to_thread(
        subprocess.run, command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    done = await run
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    results: list[dict[str, Any]] = json.loads((folder / "result.json").read_text())
    return results


async def test_osworlds_environment_and_agent_play_ten_tasks_unchanged(desktops, tmp_path):
    model = ScriptedModel()
    tasks = [
        {"id": name, "instruction": f"Do the task {name}.", "config": STEPS, "evaluator": evaluator}
        for name, (_, evaluator) in PLAYS.items()
    ]
    async with answering(model.answer) as url:
        results = await run_program(
            "play", tasks, tmp_path, DART_DESKTOPS=desktops.leases, DOUBAO_API_URL=url, DOUBAO_API_KEY="none"
        )
    assert {result["id"]: (result["before"], result["after"]) for result in results} == dict.fromkeys(PLAYS, (0, 1))
    assert len({result["port"] for result in results}) == 2, "each reset has a fresh desktop, of two slots in turn"
    assert max(model.pictures) > 1
    assert "leased" not in {slot["state"] for slot in (await desktops.ask("GET"))[1]}  # type: ignore[index]
