"""Makes tasks: pages of two to four buttons, of which one is wanted, as JSON lines for ``dart-streams propose``.

``.venv/streams/bin/python -m examples.make_tasks 12 > made.jsonl`` makes twelve.
"""

import json
import random
import sys

import msgspec

from topics.tasks import ProposedTask

COLORS = ("red", "green", "blue", "gray", "gold", "pink")
PAGE = """<!doctype html><title>Buttons</title><body style="margin: 0"><script>
  const labels = LABELS, wanted = labels[0];
  let reward = null;
  const task = {
    reset(seed) {
      for (const label of [...labels].sort(() => Math.random() - 0.5)) {
        const button = Object.assign(document.createElement("button"), { textContent: label });
        button.style = `display: block; width: 160px; height: ${200 / labels.length}px`;
        button.onclick = () => { reward = label === wanted ? 1 : 0; };
        document.body.append(button);
      }
      return `Click ${wanted}.`;
    },
    evaluate: () => reward,
    demonstrate: () => [...document.querySelectorAll("button")].find((button) => button.textContent === wanted),
  };
</script>"""


def main(count: int) -> None:
    """Print the tasks."""
    for number in range(count):
        labels = random.Random(number).sample(COLORS, 2 + number % 3)
        page = PAGE.replace("LABELS", json.dumps(labels))
        task = ProposedTask(task_id=f"miniwob/buttons-{number}#0", max_steps=3, maker="make_tasks", document=page)
        print(msgspec.json.encode(task).decode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
