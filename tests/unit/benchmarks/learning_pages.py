"""Made-up pages as a recording of them would be: one box to click, or two in turn."""

import io
import random

from PIL import Image, ImageDraw

from benchmarks.learning.screens import CELL, ClickResult, RecordedProblem, RecordedState, Recording
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.store.blobs import ref_of

WIDTH, HEIGHT, SIDE = 160, 210, 40


def task_set(train: int = 6, heldout: int = 4, demonstrations: int = 8) -> TaskSet:
    seeds = {"train": (0, train), "heldout": (1000, 1000 + heldout), "demonstration": (2000, 2000 + demonstrations)}
    named = {f"{name}_seeds": bounds for name, bounds in seeds.items()}
    pages = {"one": 1, "two": 2}.items()
    return TaskSet([Page(environment="made-up", page=page, max_steps=steps, **named) for page, steps in pages])


def recording(tasks: TaskSet) -> Recording:
    """One box: a click on it is a success. Two: the second one after the first; the other way round is a failure."""
    images: dict[str, bytes] = {}
    problems = {}
    for task in (*tasks.train, *tasks.heldout, *tasks.demonstration):
        chance = random.Random(task.task_id)
        x, y = chance.randrange(0, WIDTH - SIDE, CELL), chance.randrange(50, HEIGHT - SIDE, CELL)
        first = (x, y)
        second = ((x + WIDTH // 2) % (WIDTH - SIDE) // CELL * CELL, 50 if y > 130 else 168)
        if task.page == "one":
            states = {"": state(images, [first], {1: ClickResult(True, 1.0)}, first)}
        else:
            after = {1: ClickResult(False, 0.0), 2: ClickResult(True, 1.0)}
            start = {1: ClickResult(False, 0.0), 2: ClickResult(True, 0.0)}
            states = {
                "": state(images, [first, second], start, first),
                "1": state(images, [first, second], after, second, pressed=True),
            }
        problems[task.task_id] = RecordedProblem("Click the button", states)
    return Recording(problems, images)


def state(images, boxes, clicks, oracle, pressed=False) -> RecordedState:
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    parts = bytearray(WIDTH // CELL * HEIGHT // CELL)
    for number, (x, y) in enumerate(boxes, start=1):
        fill = "black" if pressed and number == 1 else ("red", "blue")[number - 1]
        ImageDraw.Draw(image).rectangle((x, y, x + SIDE - 1, y + SIDE - 1), fill=fill)
        for row in range(y // CELL, (y + SIDE) // CELL):
            for column in range(x // CELL, (x + SIDE) // CELL):
                parts[row * (WIDTH // CELL) + column] = number
    data = io.BytesIO()
    image.save(data, "png")
    ref = ref_of(data.getvalue(), "image/png", WIDTH, HEIGHT)
    images[ref.sha256] = data.getvalue()
    x, y = oracle
    return RecordedState(ref, bytes(parts), clicks, (x + SIDE // 2, y + SIDE // 2))
