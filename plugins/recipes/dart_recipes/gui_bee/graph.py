"""The exploration graph of a page: its screens, and where the actions tried on them led. Pure."""

from collections import deque
from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random
from dart_streams.portable_math import sum_in_order


class ExplorationGraph(msgspec.Struct):
    """What explorations of a page have found, all from the task ``task_id``.

    ``tries`` counts each action by screen, and ``leads`` has the other screen to which it led last. ``start`` is the
    screen after reset, empty before it is known.
    """

    task_id: str
    start: str = ""
    tries: dict[str, dict[str, int]] = {}
    leads: dict[str, dict[str, str]] = {}

    def add(self, screens: Sequence[str], actions: Sequence[str], last_screen: str) -> None:
        """Add an episode: action ``n`` was taken on screen ``n``; unknown screens are empty."""
        if screens and screens[0]:
            self.start = screens[0]
        for before, action, after in zip(screens, actions, [*screens[1:], last_screen], strict=False):
            if not before:
                continue
            tried = self.tries.setdefault(before, {})
            tried[action] = tried.get(action, 0) + 1
            if after and after != before:
                self.leads.setdefault(before, {})[action] = after

    @property
    def screens(self) -> set[str]:
        """All screens that were seen."""
        found = {after for leads in self.leads.values() for after in leads.values()}
        return (found | self.tries.keys() | {self.start}) - {""}

    def find_new(self, screens: Sequence[str]) -> dict[str, int]:
        """Return the screens of an episode that no earlier one has shown, each with the actions before it."""
        known, found = {*self.screens, ""}, dict[str, int]()
        for step, screen in enumerate(screens):
            if step and screen not in known and screen != screens[0]:
                found.setdefault(screen, step)
        return found

    def paths(self, longest: int) -> dict[str, list[str]]:
        """Return the shortest known path of actions to each screen within ``longest`` actions of the start."""
        paths: dict[str, list[str]] = {self.start: []}
        waiting = deque([self.start])
        while waiting:
            screen = waiting.popleft()
            for action, after in sorted(self.leads.get(screen, {}).items()):
                if after not in paths and len(paths[screen]) < longest:
                    paths[after] = [*paths[screen], action]
                    waiting.append(after)
        return paths

    def values(self) -> dict[str, float]:
        """Return each tried action's value: (screens it led away from + 1) / (screens it was tried on + 2)."""
        tried: dict[str, int] = {}
        led: dict[str, int] = {}
        for actions in self.tries.values():
            for action in actions:
                tried[action] = tried.get(action, 0) + 1
        for screen_leads in self.leads.values():
            for action in screen_leads:
                led[action] = led.get(action, 0) + 1
        return {action: (led.get(action, 0) + 1) / (count + 2) for action, count in tried.items()}


def click_places(width: int, height: int, columns: int, rows: int) -> list[tuple[int, int]]:
    """Return the middles (x, y) of the cells of a grid over a screen, in pixels."""
    return [
        (round((column + 0.5) * width / columns), round((row + 0.5) * height / rows))
        for row in range(rows)
        for column in range(columns)
    ]


def plan_episode(graph: ExplorationGraph, actions: Sequence[str], steps: int, *names: object) -> list[str]:
    """Return the actions of the next episode: a path to a screen, and then actions that were never tried on it.

    The screen is the one whose untried actions promise most changes within ``steps``; ``names`` draw among equals.
    Without any untried action within reach, those tried least on the first screen follow.
    """
    values = graph.values()

    def merit(action: str) -> tuple[float, int]:
        return -values.get(action, 0.5), stateless_random.number("action", *names, action)

    ranked = sorted(actions, key=merit)
    best: tuple[float, int, list[str]] | None = None
    for screen, path in graph.paths(steps - 1).items():
        tried = graph.tries.get(screen, {})
        untried = [action for action in ranked if action not in tried][: steps - len(path)]
        promise = sum_in_order(values.get(action, 0.5) for action in untried)
        found = (promise, stateless_random.number("screen", *names, screen), [*path, *untried])
        if untried and (best is None or found[:2] > best[:2]):
            best = found
    if best is not None:
        return best[2]
    tried = graph.tries.get(graph.start, {})
    return sorted(ranked, key=lambda action: tried.get(action, 0))[:steps]
