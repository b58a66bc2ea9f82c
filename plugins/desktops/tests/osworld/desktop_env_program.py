"""Program of `.venv/osworld`: OSWorld's DesktopEnv and agents, unchanged, on desktops of the lease server.

``play`` runs tasks with the agent UI-TARS; ``act`` executes each action of the action spaces. The result is a file.
"""

import json
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins/desktops")]

from dart_desktops.osworld.evaluator import import_stubs  # noqa: E402

import_stubs.HEAVY = import_stubs.HEAVY | {"dashscope"}
import_stubs.install()

from desktop_env.desktop_env import DesktopEnv  # noqa: E402
from mm_agents import uitars15_v1 as ui_tars  # noqa: E402

from examples import osworld_provider  # noqa: E402

# The published package lacks this module, and the same function is in another one.
sys.modules["mm_agents.utils"] = types.ModuleType("mm_agents.utils")
sys.modules["mm_agents.utils.qwen_vl_utils"] = utils = types.ModuleType("mm_agents.utils.qwen_vl_utils")
utils.smart_resize = ui_tars.smart_resize
from mm_agents.qwen3vl_agent import Qwen3VLAgent  # noqa: E402

SIZE = (1280, 720)
PIXELS = {"max_pixels": 16384 * 28 * 28, "min_pixels": 100 * 28 * 28}
CONF = {
    **{"temperature": 0, "top_k": -1, "top_p": 0.9, "max_tokens": 200, "input_swap": True, "language": "English"},
    **{"infer_mode": "qwen25vl_normal", "prompt_style": "qwen25vl_normal", "callusr_tolerance": 0, "history_n": 3},
    **PIXELS,
}
MOST_STEPS = 6
PAUSE_S = 0.3
SEEN_S = 60.0
EVENTS = "/tmp/events"


def environment():
    osworld_provider.register()
    return DesktopEnv(
        provider_name=osworld_provider.NAME,
        screen_size=SIZE,
        require_a11y_tree=False,
        cache_dir=str(Path.cwd() / "cache"),
    )


def play(tasks):
    """Return for each task the score of its start and of its end, and the desktop's address."""
    env = environment()
    agent = ui_tars.UITARSAgent(model="scripted", runtime_conf=CONF)
    results = []
    for task in tasks:
        agent.reset()
        observation = env.reset(task_config=task)
        before, done = env.evaluate(), False
        while not done and len(env.action_history) < MOST_STEPS:
            _, actions = agent.predict(task["instruction"], observation)
            for action in actions:
                observation, _, done, _ = env.step(action, PAUSE_S)
        until = time.monotonic() + SEEN_S
        while (after := env.evaluate()) < 1 and time.monotonic() < until:
            pass  # A starved program writes its events late.
        results.append({"id": task["id"], "before": before, "after": after, "port": env.server_port})
    env.close()
    return results


def qwen_actions(answer):
    agent = Qwen3VLAgent.__new__(Qwen3VLAgent)
    agent.coordinate_type = "absolute"
    return agent.parse_response(answer, *SIZE, *SIZE)[1]


def ui_tars_actions(answer):
    parsed = ui_tars.parse_action_to_structure_output(
        answer, 1000, SIZE[1], SIZE[0], "qwen25vl", PIXELS["max_pixels"], PIXELS["min_pixels"]
    )
    return [ui_tars.parsing_response_to_pyautogui_code(action, SIZE[1], SIZE[0], True) for action in parsed]


def act(request):
    """Return for each action whether its events were seen, and whether the screen has changed."""
    env = environment()
    env.reset(task_config=request["task"])
    results = []
    for space, action, events in request["actions"]:
        env.action_space = "computer_13" if space == "computer_13" else "pyautogui"
        actions = {"ui-tars": ui_tars_actions, "qwen": qwen_actions}.get(space, lambda same: [same])(action)
        shown, lines = env.controller.get_screenshot(), read_events(env)
        for one in actions:
            env.step(one, PAUSE_S)
        until = time.monotonic() + SEEN_S
        while True:
            new = read_events(env)[len(lines) :]
            missing = [event for event in events if not any(line.startswith(event) for line in new)]
            changed = env.controller.get_screenshot() != shown
            if (changed and not missing) or time.monotonic() > until:
                break
        results.append({"space": space, "action": action, "missing": missing, "new": new[-8:], "changed": changed})
    env.close()
    return results


def read_events(env):
    return env.controller.get_file(EVENTS).decode().splitlines()


if __name__ == "__main__":
    mode, given, result = sys.argv[1:]
    Path(result).write_text(json.dumps({"play": play, "act": act}[mode](json.loads(Path(given).read_text()))))
