"""``dart-streams feedback``: judge a run's trajectories, correct their steps, note what was seen."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import AsJson, RunConfig, RunId, State, run_config
from console.cli.output import log_to_stderr, print_line, show

if TYPE_CHECKING:
    from dart_streams.config import Config
    from topics.feedback import Feedback
    from topics.trajectories import Trajectory

app = typer.Typer(
    help="Judge a run's trajectories, correct their steps, note what was seen.",
    no_args_is_help=True,
    callback=log_to_stderr,
)
TrajectoryId = Annotated[str, typer.Argument(help="The trajectory's id, or its beginning.")]
Note = Annotated[str, typer.Option("--note", help="What to say beside it.")]
Author = Annotated[str, typer.Option("--author", help="Who says it. \\[default: the user's name]")]


@app.command("judge")
def judge_trajectory(
    trajectory: TrajectoryId,
    judgement: Annotated[str, typer.Argument(help="`good`, `partial` or `bad`.")],
    note: Note = "",
    author: Author = "",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
) -> None:
    """Judge a training rollout. `feedback.reward` decides whether that counts, or the evaluator's reward."""
    from console.runs.feedback import make_judgement

    where = run_config(run, state, config)
    give_feedback(where, trajectory, author, lambda found, who, at: make_judgement(found, judgement, who, at, note))


@app.command("correct")
def correct_step(
    trajectory: TrajectoryId,
    step: Annotated[int, typer.Argument(help="The action's number, from 0.", min=0)],
    action: Annotated[str, typer.Argument(help="What should have been done, such as `click(start_box='(84,120)')`.")],
    note: Note = "",
    author: Author = "",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
) -> None:
    """Correct one action of a training rollout. The policy then imitates yours at that screen.

    Places are pixels of the image that the policy sees.
    """
    from console.runs.feedback import make_correction

    where = run_config(run, state, config)
    give_feedback(where, trajectory, author, lambda found, who, at: make_correction(found, step, action, who, at, note))


@app.command("note")
def note_trajectory(
    trajectory: TrajectoryId,
    text: Annotated[str, typer.Argument(help="The note, at most 500 characters.")],
    step: Annotated[int | None, typer.Option("--step", help="The action that it is about, from 0.", min=0)] = None,
    author: Author = "",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
) -> None:
    """Note something about any trajectory. Notes train nothing."""
    from console.runs.feedback import make_note

    where = run_config(run, state, config)
    give_feedback(where, trajectory, author, lambda found, who, at: make_note(found, text, who, at, step))


@app.command("list")
def list_feedback(
    run: RunId = "", state: State = Path(".dart"), config: RunConfig = None, as_json: AsJson = False
) -> None:
    """List a run's feedback, with the optimizer step and version that first learned from each."""
    from console.runs.feedback import feedback_rows
    from console.runs.run_log import read_log
    from console.runs.run_state import RunState
    from topics import curated, feedback, trained

    read = (feedback.TOPIC, curated.TOPIC, trained.TOPIC)
    rows = feedback_rows(RunState().fold(read_log(run_config(run, state, config).bus, read)))
    show(rows, as_json=as_json, empty="no feedback on this run yet")


def author_name(given: str) -> str:
    """Return the author that an option names, or else the user; "unknown" without a user's name."""
    try:
        return given or getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def give_feedback(config: Config, name: str, author: str, make: Callable[[Trajectory, str, int], Feedback]) -> None:
    """Publish what ``make`` says of the trajectory called ``name``, its author and the time (epoch milliseconds).

    Raises UserError if there is no such trajectory.
    """
    from console.runs import feedback
    from console.runs.run_log import read_events
    from dart_streams.clock import now_ms
    from topics import trajectories

    feedback.refuse_disabled(config)
    found = feedback.find_trajectory(read_events(config.bus, [trajectories.TOPIC]), name)
    event = make(found, author_name(author), now_ms())
    asyncio.run(feedback.publish(config, [event]))
    print_line(f"{event.kind} {event.feedback_id} given; `dart-streams feedback list` shows what learned from it")
