"""``dart-streams run --dry-run``: what a run would start, printed."""

import msgspec
import tomli_w

from console.cli.output import note, print_line, show, show_json
from console.launch.placed_run import UNNAMED, PlacedProcess, RunPlan, command_text


class PlacementRow(msgspec.Struct, frozen=True):
    """A process in the table of the placement; ``memory`` is that of each of its GPUs."""

    process: str
    node: int
    gpus: str
    memory: str


def show_plan(plan: RunPlan, *, as_json: bool) -> None:
    """Print the keys that differ from the defaults, the placement, and each command with its environment."""
    if as_json:
        show_json(plan)
        return
    print_line(tomli_w.dumps(plan.configuration))
    show([row_of(each) for each in plan.processes], as_json=False, title="placement")
    for each in plan.processes:
        print_line(f"\n{each.process} (node {each.node}):\n  {command_text(each)}")
    for text in plan.notes:
        note(text)
    if any(f"/{UNNAMED}/" in part for each in plan.processes for part in each.command):
        note(f"{UNNAMED} stands for the run's id, which is the time of its start unless --id names it")


def row_of(placed: PlacedProcess) -> PlacementRow:
    """Return the row of a process."""
    return PlacementRow(placed.process, placed.node, ", ".join(placed.gpus), placed.memory_text())
