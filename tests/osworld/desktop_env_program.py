"""Program of `.venv/osworld`: OSWorld's DesktopEnv and agents, unchanged, on desktops of the lease server.

``play`` runs tasks with the agent UI-TARS. The result is a file.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from workers.env.backends.osworld.evaluator import import_stubs  # noqa: E402

import_stubs.install()

from desktop_env.desktop_env import DesktopEnv  # noqa: E402
from mm_agents import uitars15_v1 as ui_tars  # noqa: E402

from examples import osworld_provider  # noqa: E402

SIZE = (1280, 720)
PIXELS = {"max_pixels": 16384 * 28 * 28, "min_pixels": 100 * 28 * 28}
CONF = {
    **{"temperature": 0, "top_k": -1, "top_p": 0.9, "max_tokens": 200, "input_swap": True, "language": "English"},
    **{"infer_mode": "qwen25vl_normal", "prompt_style": "qwen25vl_normal", "callusr_tolerance": 0, "history_n": 3},
    **PIXELS,
}
MOST_STEPS = 6
PAUSE_S = 0.3


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
        results.append({"id": task["id"], "before": before, "after": env.evaluate(), "port": env.server_port})
    env.close()
    return results


if __name__ == "__main__":
    mode, given, result = sys.argv[1:]
    Path(result).write_text(json.dumps({"play": play}[mode](json.loads(Path(given).read_text()))))
