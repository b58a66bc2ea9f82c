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

from dart_desktops.osworld import sidecar
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.osworld.agent_side import STUBS, chat_answer, thought
from plugins.desktops.tests.served_desktops import Served, served
from tests.answering import answering
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), osworld_needs.EVALUATORS, pytest.mark.timeout(1800)]
PROGRAM = Path(__file__).with_name("desktop_env_program.py")
LIMIT_S = 800
LEASE_S = 30.0
IMPOSSIBLE = {"config": [], "evaluator": {"func": "infeasible"}}
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
root.unbind_all('<Alt-KeyPress>')  # Tk's own, which would keep other keys with Alt from ours.
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


def tool(action: str, **arguments: Any) -> str:
    call = {"name": "computer_use", "arguments": {"action": action, **arguments}}
    return f"Action: do it\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def thirteen(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"action_type": kind, "parameters": parameters}


ACTIONS: list[tuple[str, Any, list[str]]] = [
    ("computer_13", thirteen("MOVE_TO", x=300, y=200), ["motion 300 200"]),
    ("computer_13", thirteen("CLICK", button="left", x=310, y=210), ["press 1 310 210", "release 1 310 210"]),
    ("computer_13", thirteen("CLICK", button="left", x=320, y=330, num_clicks=2), ["double 1"]),
    ("computer_13", thirteen("CLICK"), ["press 1"]),
    ("computer_13", thirteen("MOUSE_DOWN"), ["press 1"]),
    ("computer_13", thirteen("MOUSE_UP"), ["release 1"]),
    ("computer_13", thirteen("RIGHT_CLICK", x=330, y=240), ["press 3 330 240"]),
    ("computer_13", thirteen("DOUBLE_CLICK", x=500, y=250), ["double 1"]),
    ("computer_13", thirteen("DRAG_TO", x=600, y=400), ["press 1 500 250", "release 1 600 400"]),
    ("computer_13", thirteen("SCROLL", dx=2, dy=0), ["wheel right"]),
    ("computer_13", thirteen("SCROLL", dy=-3), ["wheel down"]),
    ("computer_13", thirteen("TYPING", text="it's <a> \\ é"), ["text it's <a> \\ é"]),
    ("computer_13", thirteen("PRESS", key="enter"), ["key Return"]),
    ("computer_13", thirteen("KEY_DOWN", key="shift"), ["key Shift_L"]),
    ("computer_13", thirteen("KEY_UP", key="shift"), ["keyup Shift_L"]),
    ("computer_13", thirteen("HOTKEY", keys=["ctrl", "f2"]), ["key Control_L", "key F2"]),
    ("pyautogui", "pyautogui.moveTo(410, 310, duration=0.3, tween=pyautogui.easeInBounce)", ["motion 410 310"]),
    ("pyautogui", "pyautogui.move(10, 10)", ["motion 420 320"]),
    ("pyautogui", "pyautogui.click(430, 330)", ["press 1 430 330"]),
    ("pyautogui", "pyautogui.middleClick()", ["press 2"]),
    ("pyautogui", "pyautogui.rightClick(440, 340)", ["press 3 440 340"]),
    ("pyautogui", "pyautogui.tripleClick(450, 450)", ["triple 1"]),
    ("pyautogui", "pyautogui.mouseDown(); pyautogui.moveTo(460, 360); pyautogui.mouseUp()", ["release 1 460 360"]),
    ("pyautogui", "pyautogui.drag(50, 20, duration=0.3)", ["release 1 510 380"]),
    ("pyautogui", "pyautogui.scroll(4); pyautogui.hscroll(-4)", ["wheel up", "wheel left"]),
    ("pyautogui", "pyautogui.hotkey('ctrl', 'a'); pyautogui.write('again', interval=0.01)", ["text again"]),
    ("pyautogui", "pyautogui.press(['num5', 'f4'])", ["key 5", "key F4"]),
    ("pyautogui", "pyautogui.keyDown('alt'); pyautogui.press('f3'); pyautogui.keyUp('alt')", ["key Alt_L", "key F3"]),
    ("ui-tars", thought(f"click(start_box='{box(500, 300)}')"), ["press 1"]),
    ("ui-tars", thought(f"left_double(start_box='{box(300, 500)}')"), ["double 1"]),
    ("ui-tars", thought(f"right_single(start_box='{box(300, 400)}')"), ["press 3"]),
    ("ui-tars", thought(f"hover(start_box='{box(700, 400)}')"), ["motion 69"]),
    ("ui-tars", thought(f"drag(start_box='{box(300, 300)}', end_box='{box(600, 400)}')"), ["press 1", "release 1 59"]),
    ("ui-tars", thought("hotkey(key='ctrl a')"), ["key Control_L", "key a"]),
    ("ui-tars", thought("type(content='pasted ü')"), ["text pasted ü"]),
    ("ui-tars", thought("keydown(key='ctrl')"), ["key Control_L"]),
    ("ui-tars", thought("keyup(key='ctrl')"), ["keyup Control_L"]),
    ("ui-tars", thought(f"scroll(start_box='{box(500, 300)}', direction='up')"), ["wheel up"]),
    ("qwen", tool("mouse_move", coordinate=[520, 320]), ["motion 520 320"]),
    ("qwen", tool("left_click", coordinate=[530, 330]), ["press 1 530 330"]),
    ("qwen", tool("right_click", coordinate=[540, 340]), ["press 3 540 340"]),
    ("qwen", tool("middle_click", coordinate=[550, 350]), ["press 2 550 350"]),
    ("qwen", tool("double_click", coordinate=[360, 560]), ["double 1"]),
    ("qwen", tool("left_click_drag", coordinate=[620, 420]), ["release 1 620 420"]),
    ("qwen", tool("key", keys=["ctrl", "a"]), ["key Control_L", "key a"]),
    ("qwen", tool("type", text="by Qwen <"), ["text by Qwen <"]),
    ("qwen", tool("key", keys=["enter"]), ["key Return"]),
    ("qwen", tool("scroll", pixels=-3), ["wheel down"]),
]
"""Action spaces, actions, and the events that a program on the screen must have."""


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
        return chat_answer(thought(script[step]))


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


async def test_each_action_of_the_action_spaces_is_seen_on_the_screen(desktops, tmp_path):
    task = {"id": "act", "instruction": "", "config": STEPS, "evaluator": {"func": "infeasible"}}
    results = await run_program("act", {"task": task, "actions": ACTIONS}, tmp_path, DART_DESKTOPS=desktops.leases)
    assert [result for result in results if result["missing"] or not result["changed"]] == []
    assert len(results) == len(ACTIONS)


SCRIPT = """
import argparse, json, time
from pathlib import Path
import beside
from desktop_env.desktop_env import DesktopEnv
parser = argparse.ArgumentParser()
parser.add_argument('--provider_name', choices=['docker', 'vmware'])
chosen = parser.parse_args().provider_name
env = DesktopEnv(provider_name=chosen, screen_size=(1280, 720), require_a11y_tree=False, cache_dir='cache')
observation = env.reset(task_config=beside.TASK)
env.step('FAIL', 0)
Path('result.json').write_text(json.dumps([env.evaluate(), observation['screenshot'][:4].hex(), beside.TASK['id']]))
while Path('result.json').exists():
    time.sleep(0.05)
env.close()
"""
"""A script as OSWorld's, with a module beside it. It accepts OSWorld's provider names only."""


def launched(folder: Path, leases: str) -> subprocess.Popen[bytes]:
    """Start a script of OSWorld by a copy of the provider's file next to it."""
    (folder / "osworld_provider.py").write_bytes((PROGRAM.parents[4] / "examples/osworld_provider.py").read_bytes())
    (folder / "run.py").write_text(SCRIPT)
    (folder / "beside.py").write_text(f"TASK = {{'id': 'launched', 'instruction': '', **{IMPOSSIBLE!r}}}")
    (folder / "sitecustomize.py").write_text(STUBS)
    command = [sidecar.ENVIRONMENT / "bin" / "python", "osworld_provider.py", "run.py", "--provider_name", "docker"]
    variables = {"no_proxy": "127.0.0.1", "PYTHONPATH": str(folder), "DART_DESKTOPS": leases}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stdout=output, stderr=output)


async def test_a_script_of_osworld_has_our_desktops_by_the_launcher(tmp_path):
    """Its lease is renewed while it lives, beyond the time for which a lease holds, and ends after it."""
    async with served(tmp_path, slots=1, lease_s=LEASE_S, ask_token=False) as desktops:

        async def slot() -> Any:
            return (await desktops.ask("GET"))[1][0]  # type: ignore[index]

        async def is_held_long() -> bool:
            assert script.poll() is None, (tmp_path / "output").read_text()[-2000:]
            seen = await slot()
            is_played = (tmp_path / "result.json").exists() and seen["state"] == "leased"
            return is_played and seen["since_s"] > (1.5 * LEASE_S if ends_itself else 0.0)

        async def is_free() -> bool:
            return bool((await slot())["state"] == "ready")

        for ends_itself in (True, False):
            script = launched(tmp_path, desktops.leases)
            try:
                await until(is_held_long, 600.0)
                assert json.loads((tmp_path / "result.json").read_text()) == [1.0, b"\x89PNG".hex(), "launched"]
                (tmp_path / "result.json").unlink() if ends_itself else script.kill()
                assert (await asyncio.to_thread(script.wait, LIMIT_S) == 0) == ends_itself
                await until(is_free)
            finally:
                script.kill()
