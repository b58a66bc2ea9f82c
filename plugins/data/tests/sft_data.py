"""Small data sets to fine-tune on: clicks on a box of a few places."""

import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

PLACES = ((40, 60), (160, 60), (100, 180))


def draw_box(file: Path, x: int, y: int, shade: int = 0) -> None:
    """Write a screen with a box around a place; ``shade`` makes it another image."""
    image = Image.new("RGB", (224, 224), (255, 255, 255 - shade))
    ImageDraw.Draw(image).rectangle((x - 20, y - 10, x + 20, y + 10), fill="blue")
    image.save(file)


def click(x: int, y: int) -> str:
    """Return an answer of the native dialect."""
    return f"Action: click(start_box='({x},{y})')"


def demonstrations(folder: Path, count: int, steps: int = 2) -> list[dict[str, Any]]:
    """Return ``count`` demonstrations of ``steps`` clicks each, with their screens in ``folder``."""
    lines = []
    for number in range(count):
        shown = []
        for step in range(steps):
            place = PLACES[(number + step) % len(PLACES)]
            name = f"{number}-{step}.png"
            draw_box(folder / name, *place, shade=number)
            shown.append({"image": name, "text": click(*place)})
        lines.append({"instruction": "Click the box", "steps": shown})
    return lines


def write_lines(file: Path, lines: list[dict[str, Any]]) -> Path:
    """Write lines of JSON."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
