"""Our tasks in OSWorld's format that clicks solve, as the scripted oracle needs."""

import json
from pathlib import Path
from typing import Any

from plugins.desktops.tests.served_desktops import Served

SIZE = (800, 600)
GO, ALSO = (200, 150), (600, 150)
"""Where the window has its buttons, in pixels of the screen."""
PRESSED, ALSO_PRESSED = "/home/user/pressed", "/home/user/also"
WINDOW = f"""
import subprocess, sys, tkinter
root = tkinter.Tk(className="press")
root.geometry("{SIZE[0]}x{SIZE[1]}+0+0")
count = tkinter.IntVar()
tkinter.Label(root, textvariable=count).place(x=380, y=400)
def press(command):
    subprocess.Popen(command, shell=True)
    count.set(count.get() + 1)
for (x, y), command in zip(({GO}, {ALSO}), sys.argv[1:]):
    tkinter.Button(root, text="Go", command=lambda command=command: press(command)).place(
        x=x - 100, y=y - 100, width=200, height=200)
root.wait_visibility()
root.update()
root.title("Press")
root.mainloop()
"""
"""Two large buttons, each with a command, and a number that shows that one was pressed; titled once it is shown."""


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def window(*commands: str) -> list[dict[str, Any]]:
    """Return the steps that show the window; its buttons carry out the commands."""
    return [
        step("launch", command=["python", "-c", WINDOW, *commands]),
        step("execute", command=["wmctrl", "-l"], until={"stdout": "Press"}),
        step("sleep", seconds=0.5),
    ]


def lists(*wanted: str, unwanted: str = "nothing-has-this-name") -> dict[str, Any]:
    """Return an evaluator that wants files in the home."""
    return {
        "func": "check_include_exclude",
        "postconfig": [step("sleep", seconds=5)],  # a click's command may take its time; ends at rest on our desktops
        "result": {"type": "vm_command_line", "command": ["ls", "/home/user"]},
        "expected": {"type": "rule", "rules": {"include": list(wanted), "exclude": [unwanted]}},
    }


BOTH = (f"touch {PRESSED}", f"touch {ALSO_PRESSED}")
FILL = "for folder in /home/user /tmp /var /run /dev/shm; do head -c 1G /dev/zero >$folder/full; done; true"
BOMB = "bash -c ':(){ :|:& };:'"
SLOW = {**lists("pressed"), "result": {"type": "vm_command_line", "command": ["sleep", "60"]}}
AT_GO, AT_BOTH = f"Press Go at {GO}.", f"Press Go at {GO}, then at {ALSO}."
TASKS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "press": (AT_GO, window(*BOTH), lists("pressed", unwanted="also")),
    "press-both": (AT_BOTH, window(*BOTH), lists("pressed", "also")),
    "press-other": (AT_GO, window(*BOTH), lists("also")),
    "impossible": (AT_GO, window(*BOTH), {"func": "infeasible"}),
    "fill": (AT_GO, window(FILL, FILL), lists("pressed")),
    "bomb": (AT_GO, window(BOMB, BOMB), lists("pressed")),
    "slow": (AT_GO, window(*BOTH), SLOW),
    "no-window": (AT_GO, [step("open", path="/home/user/none.txt")], lists("pressed")),
}
"""Instruction, steps and evaluator by name; the scripted oracle clicks where the instruction says, step by step."""


def write(folder: Path, *names: str, max_steps: int = 2) -> Path:
    """Write a checkout with these tasks, an empty mirror and a task set; return the task set's file."""
    examples = folder / "checkout/evaluation_examples"
    (examples / "examples/os").mkdir(parents=True)
    (folder / "mirror").mkdir()
    for name in names:
        instruction, config, evaluator = TASKS[name]
        content = {"id": name, "instruction": instruction, "config": config, "evaluator": evaluator}
        (examples / f"examples/os/{name}.json").write_text(json.dumps(content))
    (examples / "test_all.json").write_text(json.dumps({"os": list(names)}))
    file = folder / "tasks.toml"
    file.write_text(f'[osworld]\nfolder = "checkout"\nheldout_share = 0\nmax_steps = {max_steps}\n')
    return file


def leased(desktops: Served, folder: Path, **env: Any) -> dict[str, Any]:
    """Return ``[env]`` of a worker that leases the desktops from their server, so that it knows them as ours."""
    osworld = {
        "lease_url": desktops.leases,
        "lease_token": f"file:{desktops.token_file}",
        "mirror_folder": str(folder / "mirror"),
        "call_timeout_s": 60.0,
        "reset_timeout_s": 240.0,
        "check_start": False,
    }
    limits = {"request_timeout_s": 60.0, "episode_timeout_s": 600.0}
    return {"backend": "osworld", "slots": 2, **limits, "osworld": osworld, **env}
