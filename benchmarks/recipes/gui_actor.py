"""Hit rates of the attention head and of written coordinates, on the same held-out screens.

``.venv/model/bin/python -m benchmarks.recipes.gui_actor CONFIG FILE`` prints them as JSON; FILE is that of
:mod:`benchmarks.recipes.gui_actor_screens`. Both heads begin with the same tiny policy of the deployment, and see the
same demonstrations in the same order, as many times, at the same learning rate.
"""

import argparse
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from benchmarks.recipes import gui_actor_learning as learning
from benchmarks.recipes import gui_actor_screens as screens
from benchmarks.recipes.gui_actor_screens import TargetScreen
from dart_recipes.gui_actor.grounding import Asked, Grounder
from dart_recipes.gui_actor.patches import Point, contains
from dart_streams import actions
from dart_streams.actions import Click
from dart_streams.actions.dialects import View
from dart_streams.config import Config, Policy, load
from dart_streams.episodes import prompts
from dart_streams.policy import tiny
from dart_streams.policy.rendering import Renderer, renderer_of
from dart_streams.store.blobs import ref_of
from trainer.data.collate import Collator
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.data.successes import sft_group
from trainer.warmup.build import warm_up
from workers.env.environment import rescale

Z = 1.959964
"""Normal quantile of 95 % intervals."""
ROOM = 64
"""Screens read at a time."""


class HeldoutHits(NamedTuple):
    """Whether each head hit each held-out target."""

    coordinates: list[bool]
    attention: list[bool]
    verified: list[bool]


def ask(renderer: Renderer, policy: Policy, example: TargetScreen) -> Asked:
    """Return the prompt of an example's screen, as the environment worker makes it."""
    ref = ref_of(example.image, "image/png", example.width, example.height)
    view = View(*prompts.policy_size(ref, policy))
    turns = prompts.turns_of(example.instruction, view, [prompts.PromptStep(None, "", ref)], policy)
    return Asked(renderer.prompt(turns), [Collator(renderer).encode(example.image)])


def train_coordinates(folder: Path, config: Config, shown: Sequence[TargetScreen], seed: int) -> None:
    """Train the policy of a folder to write the demonstrated coordinates."""
    renderer, policy = renderer_of(folder, config.policy), config.policy
    samples, images = [], {}
    for example in shown:
        prompt = ask(renderer, policy, example).prompt
        size = prompts.policy_size(prompt.images[0], policy)
        click = rescale(Click(*example.click), (example.width, example.height), size)
        answer = renderer.answer_tokens(policy.dialect.build().write(click, View(*size)))
        samples.append(TrainingSample(prompt=prompt.token_ids, answer=answer, images=prompt.images))
        images[prompt.images[0].sha256] = example.image
    group = ReadyGroup(group=sft_group("shown", []), samples=samples, images=images, refused=Counter(), read_ms=0.0)
    warm_up(folder, renderer, [group], config.warmup, lambda _step, _loss: None, seed)


def written_points(grounder: Grounder, policy: Policy, asked: Sequence[Asked]) -> list[Point | None]:
    """Return the places of written clicks, in pixels of the screen; None for another answer."""
    found: list[Point | None] = []
    for each, text in zip(asked, grounder.answer(asked, policy.max_tokens), strict=True):
        screen = each.images[-1].size
        size = prompts.policy_size(each.prompt.images[-1], policy)
        try:
            action = actions.parse(text)
        except actions.Unparsable:
            action = None
        place = rescale(action, size, screen) if isinstance(action, Click) else None
        found.append((place.x, place.y) if isinstance(place, Click) else None)
    return found


def hits_of(examples: Sequence[TargetScreen], points: Sequence[Point | None]) -> list[bool]:
    """Return whether each point is in its target's box."""
    pairs = zip(examples, points, strict=True)
    return [point is not None and contains(example.box, point) for example, point in pairs]


def compare(config: Config, examples: Sequence[TargetScreen], seed: int, folder: Path) -> HeldoutHits:
    """Train both heads from one policy, and return their hits; the attention head stays in ``folder``."""
    torch.set_num_threads(1)  # A model this small gains nothing from a second thread.
    shown = [example for example in examples if example.split == "demonstration"]
    heldout = [example for example in examples if example.split == "heldout"]
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "policy"
        for place in (written, folder):
            tiny.build(place, seed, config.warmup.architecture, config.warmup.width)
        train_coordinates(written, config, shown, seed)
        renderer = renderer_of(folder, config.policy)
        asked = [ask(renderer, config.policy, example) for example in heldout]
        parts = [asked[start : start + ROOM] for start in range(0, len(asked), ROOM)]
        writer = Grounder(written, renderer)
        places = [point for part in parts for point in written_points(writer, config.policy, part)]
    torch.manual_seed(seed)
    grounder = Grounder(folder, renderer)
    taught = [learning.Shown(ask(renderer, config.policy, example), example.box) for example in shown]
    learning.train_head(grounder, taught, config.warmup, seed)
    learning.train_verifier(grounder, taught, config.warmup, seed)
    grounder.save(folder)
    best, chosen = (
        [point for part in parts for point in grounder.locate(part, verified)] for verified in (False, True)
    )
    return HeldoutHits(hits_of(heldout, places), hits_of(heldout, best), hits_of(heldout, chosen))


def rate_of(hits: Sequence[bool]) -> dict[str, float]:
    """Return a hit rate with its 95 % interval (Wilson)."""
    n, rate = len(hits), fmean(hits)
    middle, spread = rate + Z * Z / (2 * n), Z * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    low, high = ((middle + side * spread) / (1 + Z * Z / n) for side in (-1, 1))
    return {"rate": round(rate, 3), "low": round(low, 3), "high": round(high, 3)}


def difference_of(hits: Sequence[bool], others: Sequence[bool]) -> dict[str, float]:
    """Return the difference of two hit rates on the same screens, with a 95 % interval of paired data."""
    pairs = [one - other for one, other in zip(hits, others, strict=True)]
    mean = fmean(pairs)
    spread = Z * math.sqrt(fmean((pair - mean) ** 2 for pair in pairs) / len(pairs))
    return {"difference": round(mean, 3), "low": round(mean - spread, 3), "high": round(mean + spread, 3)}


def report(examples: Sequence[TargetScreen], compared: HeldoutHits) -> dict[str, Any]:
    """Return the rates of one seed, of all screens and by page."""
    heldout = [example for example in examples if example.split == "heldout"]
    pages: defaultdict[str, list[int]] = defaultdict(list)
    for number, example in enumerate(heldout):
        pages[example.page].append(number)
    heads = compared._asdict()
    return {
        **{name: rate_of(hits) for name, hits in heads.items()},
        "attention - coordinates": difference_of(compared.attention, compared.coordinates),
        "verified - attention": difference_of(compared.verified, compared.attention),
        "pages": {
            page: {name: round(fmean(hits[number] for number in of), 3) for name, hits in heads.items()}
            for page, of in pages.items()
        },
    }


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("screens", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--save", type=Path, help="new folder for the policy with the attention head, of the last seed")
    given = parser.parse_args()
    config, examples = load(given.config), screens.read(given.screens)
    started, seeds = time.process_time(), {}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in given.seeds:
            last = seed == given.seeds[-1]
            folder = given.save if given.save and last else Path(scratch) / str(seed)
            seeds[str(seed)] = report(examples, compare(config, examples, seed, folder))
    shown = sum(example.split == "demonstration" for example in examples)
    facts = {
        "demonstrations": shown,
        "heldout": len(examples) - shown,
        "examples": config.warmup.steps * config.warmup.batch,
        "cpu_s": round(time.process_time() - started),
    }
    print(json.dumps(facts | {"seeds": seeds}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
