"""What a run shows on a terminal, and the line where there is none."""

import io

import msgspec
from rich.console import Console

from console.runs.run_state import RunState
from console.views.terminal import (
    Moment,
    RunSummary,
    draw_panel,
    format_clock,
    format_line,
    open_lag,
    summarize,
)
from tests.events import rollout_order, trained_step
from tests.unit.console.runs.test_run_log import group
from tests.unit.console.runs.test_run_state import START, finish, fold, seen, serving, version

STATE = fold(
    *(rollout_order(f"o{n}") for n in range(100)),
    *(finish(f"o{n}", f"t{n}", reward=float(n < 61)) for n in range(100)),
    *(seen(f"open-{n}", 0, f"next-{n}") for n in range(15)),
    seen("open-0", 1, "next-0"),
    *(group(n) for n in range(80)),
    version(9, 72),
    serving(8, START),
)
SUMMARY = RunSummary(
    state=STATE,
    steps_per_s=14.3,
    utilization=0.93,
    finished_eval=240,
    ordered_eval=240,
    curve=(0.3, 0.4, None, 0.6),
    staleness_mean=0.8,
    staleness_max=2,
    trained={"loss": 0.0123, "reward": 0.55},
)
MOMENT = Moment(
    run_id="20261121-093000-ab12",
    phase="circle",
    phase_s=190,
    left_s=350,
    summary=SUMMARY,
    lag={("env", "rollout-orders"): 12, ("recorder", "observations"): 0},
    children=(("env-0", 1), ("trainer", 2)),
)


def drawn(moment: Moment) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(draw_panel(moment))
    return console.file.getvalue()


def test_the_panel_and_the_line_show_the_same_figures():
    text = drawn(MOMENT)
    for part in (
        "20261121-093000-ab12  ·  circle  3:10  ·  5:50 left",
        "▃▄ ▅  61% of the last episodes",
        "14.3 steps/s, slots busy 93%",
        "9 trained, 8 served",
        "0.8 mean, 2 max",
        "env 12",
        "reward 0.55, loss 0.0123",
        "trainer  (started 2 times)",
    ):
        assert part in text, part
    assert "recorder" not in text
    assert format_line(MOMENT) == (
        "circle 3:10, 5:50 left | 14.3 steps/s | slots busy 93% | 100 episodes, success 61% | "
        "groups 80 curated, 72 consumed | version 9, served 8 | staleness 0.8 max 2 | reward 0.55, loss 0.0123 | lag 12"
    )


def test_the_address_of_the_page_is_the_first_line_or_the_end_of_the_one():
    shown = msgspec.structs.replace(MOMENT, page="http://127.0.0.1:8765/?token=x")
    assert "watch    http://127.0.0.1:8765/?token=x" in drawn(shown).splitlines()[1]
    assert format_line(shown).endswith("lag 12 | http://127.0.0.1:8765/?token=x")


def test_the_panel_is_drawn_before_anything_is_known():
    early = Moment(run_id="r", phase="policy", phase_s=3, left_s=None, summary=None, lag={}, children=(), news="3/9")
    assert "policy  0:03" in drawn(early)
    assert "3/9" in drawn(early)
    assert format_line(early) == "policy 0:03 | 3/9"


def test_a_group_with_several_topics_is_named_once_with_their_sum():
    lag = {("curator", "trajectories"): 3, ("curator", "weights"): 1, ("curator", "curated"): 4}
    moment = msgspec.structs.replace(MOMENT, lag=lag, children=(("curator-0", 1),))
    assert open_lag(moment) == {"curator": 8}
    assert "curator 8" in drawn(moment)
    assert format_line(moment).endswith("lag 8")


def test_a_group_whose_processes_have_ended_is_not_behind():
    lag = {("curator", "trajectories"): 300, ("trainer", "curated"): 7, ("env", "rollout-orders"): 2}
    moment = msgspec.structs.replace(MOMENT, lag=lag, children=(("env-0", 1), ("recorder-0", 1)))
    assert open_lag(moment) == {"env": 2}
    unsupervised = msgspec.structs.replace(moment, children=())
    assert open_lag(unsupervised) == {"curator": 300, "trainer": 7, "env": 2}


def test_an_action_request_counts_only_while_an_episode_may_wait_for_it():
    lag = {("rollout", "action-requests"): 40}
    children = (("env-0", 1), ("rollout-0", 1))
    assert open_lag(msgspec.structs.replace(MOMENT, lag=lag, children=children)) == {"rollout": 15}
    nobody_waits = msgspec.structs.replace(SUMMARY, state=RunState())
    moment = msgspec.structs.replace(MOMENT, lag=lag, children=children, summary=nobody_waits)
    assert open_lag(moment) == {}


def test_a_clock_never_runs_below_zero():
    assert [format_clock(s) for s in (-3, 59.9, 61)] == ["0:00", "0:59", "1:01"]


def test_a_start_says_what_it_waits_for_and_the_end_no_figures():
    early = msgspec.structs.replace(SUMMARY, state=fold(rollout_order("o")), trained={}, staleness_max=None)
    moment = msgspec.structs.replace(MOMENT, phase="start", phase_s=20, left_s=None, summary=early)
    moment = msgspec.structs.replace(moment, waiting="starting vLLM in rollout-0", lag={("env", "rollout-orders"): 480})
    assert format_line(moment) == "start 0:20 | starting vLLM in rollout-0"
    assert "starting vLLM in rollout-0" in drawn(moment)
    after = msgspec.structs.replace(MOMENT, phase="after")
    assert "loss" in format_line(MOMENT) and "loss" not in format_line(after)
    assert "staleness" not in format_line(after)
    assert "loss" in drawn(MOMENT) and "loss" not in drawn(after)


def test_an_evaluation_is_counted_against_all_of_its_episodes():
    orders = [rollout_order(f"e{n}", purpose="eval", group_id="eval-v0", sample=n, group_size=2) for n in range(2)]
    ends = [finish("e0", "a", reward=1.0), finish("e1", "b", "env_error", None)]
    summary = summarize(fold(*orders, *ends), START, slots=1, planned_eval=6)
    assert (summary.finished_eval, summary.ordered_eval) == (1, 6), "the fault is played again, other orders come later"
    last = rollout_order("e1-2", purpose="eval", group_id="eval-v0", sample=1, group_size=2, attempt=9)
    again = summarize(fold(*orders, *ends, last, finish("e1-2", "c", "env_error", None)), START, 1, planned_eval=6)
    assert again.finished_eval == 2, "a fault of the last attempt ends an episode"


def test_staleness_is_that_of_the_newest_steps_at_training():
    rows = [{"staleness_mean": 2.0, "staleness_max": 5.0}, *[{"staleness_mean": 1.0, "staleness_max": 2.0}] * 10]
    steps = [trained_step(number, metrics=row) for number, row in enumerate(rows)]
    summary = summarize(fold(*steps), START, slots=1)
    assert (summary.staleness_mean, summary.staleness_max) == (1.0, 2)
