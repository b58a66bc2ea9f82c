"""A report of a made-up run: every figure of the contract, the accounts of lost orders, and the page."""

import base64
import hashlib
import itertools
import json
import math
import random
import re
from pathlib import Path

import msgspec
import pytest

from console.runs import evaluation, open_orders
from console.runs.evaluation import EvaluationEpisode, EvaluationResult, wilson_rate
from console.runs.fault_kinds import EnvFaults
from console.runs.metrics_reader import MetricsReader
from console.runs.process_usage import ProcessUsage
from console.runs.run_folder import PhaseLog, RunFolder, RunPhase, create
from console.runs.run_log import EndHeader, ObservationHeader, OrderHeader, RecordMetadata
from console.runs.run_state import RunState
from console.runs.time_slices import SLICE_MS
from console.views import report_metrics, trainer_figures
from console.views.page import export, training
from console.views.page.assets import Asset, load_assets
from console.views.page.report_view import choose_samples, report_view
from console.views.report import format_headline
from console.views.report_metrics import ReportInputs
from dart_streams.bus.lag import Lag
from dart_streams.config import Config, Evaluation, Trainer
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.telemetry import names
from tests import events
from tests.integration.exported_page import scripts
from tests.unit.console.runs.test_run_state import fold
from topics.trained import TrainedToken

START = 1_700_000_000_000
MINUTE = 60_000
LENGTH = 9 * MINUTE
PAGES = ("click-test", "click-dialog-2", "enter-text", "click-button-sequence", "focus-text-2", "click-option")
CONTRACT = {
    *("success_before", "success_after", "per_task", "train_steps", "episodes", "env_steps", "env_utilisation", "lost"),
    *("staleness", "weight_switch_ms", "requests", "trajectories", "wall_s"),
}


def group_of(group_id, trajectories):
    members = [
        events.member(t.trajectory_id, reward=t.reward, version_min=t.version_min, version_max=t.version_max)
        for t in trajectories
    ]
    return events.curated_group(group_id, *members)


class MadeUpRun:
    """Events of a run that learns: 40 versions in nine minutes on six pages."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.progress = RunState()

    def record(self, at_ms, event):
        fold(event, progress=self.progress, at_ms=at_ms)
        return event

    def order(self, order_id, purpose, task_id, at_ms, sample=0):
        return self.record(at_ms, events.rollout_order(order_id, sample=sample, task_id=task_id, purpose=purpose))

    def play(self, order, started_ms, success, version):
        steps = self.rng.randint(1, 5)
        step_ms = self.rng.randint(500, 900)
        identity = f"t-{order.order_id}"
        outcome = "success" if success else self.rng.choice(["failure", "failure", "truncated", "invalid_action"])
        for step in range(steps + 1):
            end = EndHeader(outcome) if step == steps else None
            header, at_ms = OrderHeader(order.order_id, order.purpose), started_ms + step * step_ms
            self.record(at_ms, ObservationHeader(identity, header, step, end, "env-0", at_ms))
        trajectory = events.trajectory(
            identity,
            order_id=order.order_id,
            group_id=order.group_id,
            task_id=order.task_id,
            purpose=order.purpose,
            outcome=outcome,
            reward=float(success),
            steps=steps,
            step_entropies=[0.5] * steps,
            version_min=version,
            version_max=version,
            started_ms=started_ms,
            finished_ms=started_ms + steps * step_ms,
        )
        self.record(trajectory.finished_ms, trajectory)
        return started_ms + steps * step_ms

    def train(self):
        for slot in range(16):
            now, number = START + self.rng.randint(0, 2000), 0
            while now < START + LENGTH:
                version = int((now - START) / LENGTH * 40)
                task = f"miniwob/{self.rng.choice(PAGES)}#{self.rng.randint(0, 20)}"
                order = self.order(f"train-{slot}-{number}", "train", task, now)
                rate = 0.35 + 0.4 * (1 - 2 ** (-(now - START) / (3 * MINUTE)))
                now = self.play(order, now, self.rng.random() < rate, version) + self.rng.randint(50, 300)
                number += 1
        ids = list(self.progress.finished.values())
        for version in range(1, 41):
            at = START + version * LENGTH // 41
            near = [t for t in ids if t.finished_ms < at][-40:]
            self.record(at - 100, group_of(f"g{version}", near))
            metrics = {
                "loss": self.rng.gauss(0.0, 0.01),
                "reward": 0.3 + version * 0.01 + self.rng.gauss(0, 0.03),
                "entropy": 0.8 - version * 0.008,
                "grad_norm": 0.6 + self.rng.random() * 0.3,
                "train_ms": 5000.0,
                "publish_ms": 100.0,
                "clip_share": 0.02 + self.rng.random() * 0.02,
                "kl_reference": 0.001 * version,
                "truncated_share": 0.25,
                "updates": 2.0,
                "rows": 4.0,
                "tokens_computed": 300.0,
                "tokens_distinct": 200.0,
                "images_encoded": 5.0,
                "images_distinct": 4.0,
                "same_version_mismatch": 0.002 + self.rng.random() * 0.001,
            }
            names = {"group_ids": [f"g{version}"], "trajectory_ids": [t.trajectory_id for t in near]}
            self.record(at, events.trained_step(version, **names, metrics=metrics, at_ms=at))

    def serve(self):
        for version in range(41):
            at = START + version * LENGTH // 41
            digest, served = f"{version:064x}", at + 300
            self.record(at, events.weight_version(version, sha256=digest, groups_consumed=8 * version))
            pause = self.rng.lognormvariate(3.9, 0.3) if version else None
            times = {"since_ms": served, "alive_ms": served, "pause_ms": pause}
            self.record(served, events.weights_serving(version, **times, sha256=digest))

    def evaluate(self, config, tasks, version, at_ms, success_rates):
        for order in evaluation.build_orders(config, tasks, version):
            placed = self.order(order.order_id, "eval", order.task_id, at_ms, order.sample)
            page = tasks.get(order.task_id).page
            self.play(placed, at_ms, self.rng.random() < success_rates[page], version)


def made_up(tmp_path: Path) -> tuple[RunFolder, ReportInputs]:
    config = Config(evaluation=Evaluation(episodes=240))
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, state_dir=str(tmp_path)))
    tasks_file = Path(__file__).parents[4] / "deploy/config/tasks.toml"
    folder = create(config, tasks_file, "20261121-093000-ab12", resume=False)
    (folder.path / "metrics").mkdir()
    seeds = {"train_seeds": (0, 20), "heldout_seeds": (1000, 1020)}
    tasks = TaskSet([Page(environment="miniwob", page=name, max_steps=6, **seeds) for name in PAGES])
    run = MadeUpRun()
    run.serve()
    run.evaluate(config, tasks, 0, START - 70_000, dict(zip(PAGES, (0.69, 0.5, 0.2, 0.1, 0.5, 0.05), strict=True)))
    run.train()
    run.evaluate(
        config, tasks, 40, START + LENGTH + 8_000, dict(zip(PAGES, (0.95, 0.8, 0.3, 0.4, 0.85, 0.03), strict=True))
    )
    seconds = {"services": 14, "topics": 2, "start": 24, "demonstrations": 5, "before": 70, "circle": LENGTH // 1000}
    phases, at = [], START - 115_000
    for name, length in {**seconds, "settle": 8, "after": 66, "drain": 4}.items():
        phases.append(RunPhase(name, at, at := at + length * 1000))
    ordered = run.progress.activity["rollout-orders"].records
    materials = ReportInputs(
        config=folder.config(),
        tasks=tasks,
        journal=PhaseLog(tuple(phases), 0, 40, "complete"),
        progress=run.progress,
        readings=MetricsReader(folder.path / "metrics"),
        lags=[Lag("env", "rollout-orders", 0, ordered, ordered)],
        usage=[
            ProcessUsage(START + n * 1000, name, n * share, 100.0)
            for n in range(540)
            for name, share in (("rollout-0", 1.0), ("trainer", 0.4), ("env-0", 0.25), ("kafka", 0.1))
        ],
    )
    return folder, materials


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("run"))[1]


def test_answers_are_counted_by_faults_and_prompts_by_what_was_computed(tmp_path):
    folder, inputs = made_up(tmp_path)
    counts = {("marker", "executed"): 3, ("outside", "executed"): 1, ("marker", "refused"): 2}
    common = {"name": names.ENV_ANSWERS_WRONG, "start_ms": START, "at_ms": START + MINUTE}
    points = [common | {"attributes": {"kind": k, "treated": t}, "value": count} for (k, t), count in counts.items()]
    line = json.dumps({"process": "env-0", "points": points})
    (folder.path / "metrics" / "env-0.jsonl").write_text(line + "\n")
    counted = msgspec.structs.replace(inputs, readings=MetricsReader(folder.path / "metrics"))
    found = report_metrics.build_report(counted)["answers_wrong"]
    assert found == {"executed": {"marker": 3, "outside": 1}, "refused": {"marker": 2}}
    counts = [
        (names.ROLLOUT_PROMPT_TOKENS, {"source": "computed"}, 300),
        (names.ROLLOUT_PROMPT_TOKENS, {"source": "cached"}, 900),
        (names.ROLLOUT_SCREENSHOTS, {}, 30),
        (names.ROLLOUT_ENCODINGS, {}, 40),
        (names.ROLLOUT_RECALLED, {"tokens": "same"}, 19),
        (names.ROLLOUT_RECALLED, {"tokens": "other"}, 1),
    ]
    common = {"start_ms": START, "at_ms": START + MINUTE}
    points = [common | {"name": name, "attributes": kind, "value": count} for name, kind, count in counts]
    (folder.path / "metrics" / "rollout-0.jsonl").write_text(json.dumps({"process": "rollout-0", "points": points}))
    counted = msgspec.structs.replace(inputs, readings=MetricsReader(folder.path / "metrics"))
    assert report_metrics.build_report(counted)["prompts"] == {
        "tokens": 1200,
        "computed_tokens": 300,
        "cached_share": 0.75,
        "screenshots": 30,
        "encodings": 40,
        "answers_retokenized": 1,
        "retokenized_share": 0.05,
    }


def test_figures_without_metrics_are_unknown_and_not_zero(tmp_path):
    _, inputs = made_up(tmp_path)
    bare = msgspec.structs.replace(inputs, readings=MetricsReader(None))
    report = report_metrics.build_report(bare)
    assert report["requests"] == {"sent": None, "answered": None, "timed_out": None}
    assert report["answers_wrong"] is None
    assert report["slot_time"] == {}
    assert set(report["prompts"].values()) == {None}
    assert set(report["overhead_ms"].values()) == {None}
    assert {value for part in report["step_ms"].values() for value in part.values()} == {None}
    assert report.keys() >= CONTRACT
    assert report_view(bare).slot_shares.x == []


def test_the_report_has_every_figure_of_the_contract(materials):
    report = report_metrics.build_report(materials)
    assert report.keys() >= CONTRACT
    assert report["success_before"] == pytest.approx(0.34, abs=0.06)
    assert report["success_after"] == pytest.approx(0.555, abs=0.06)
    assert set(report["per_task"]) == set(PAGES)
    assert report["train_steps"] == 40
    assert report["versions_served"] == 40
    assert report["served_weights"]["announced"] == report["served_weights"]["equal"] == 41
    assert report["trajectories"]["finished"] == report["episodes"]
    assert 0.8 < report["env_utilisation"] <= 1.0
    assert report["weight_switch_ms"]["p50"] == pytest.approx(50, rel=0.3)
    assert report["wall_s"]["circle"] == 540
    assert report["cpu_s"]["rollout-0"] == pytest.approx(539)
    assert report["lost"] == 0
    assert report["staleness"]["max"] >= 1
    assert report["trainer"]["idle_share"] == pytest.approx(1 - 40 * 5.1 / 540, abs=0.01)


@pytest.mark.parametrize("killed", [False, True])
def test_a_resumed_runs_figures_are_of_all_its_training_phases(materials, killed):
    """A run that is killed leaves a phase without an end; its end is that of its last records."""
    whole = report_metrics.build_report(materials)
    cut, again = START + 3 * MINUTE, START + 5 * MINUTE
    first = RunPhase("circle", START, None if killed else cut)
    phases = (first, RunPhase("services", cut + 1000, again), RunPhase("circle", again, START + LENGTH))
    resumed = msgspec.structs.replace(materials, journal=PhaseLog(phases, 0, 40, "complete"))
    report = report_metrics.build_report(resumed)
    assert resumed.trained_ms() == pytest.approx(7 * MINUTE, abs=2 * SLICE_MS)
    assert report["cpu_s"]["rollout-0"] == pytest.approx(7 / 9 * whole["cpu_s"]["rollout-0"], rel=0.03)
    assert len(resumed.trained_metrics) == pytest.approx(7 / 9 * 40, abs=1.5)
    assert report["trainer"]["idle_share"] == pytest.approx(whole["trainer"]["idle_share"], abs=0.05)
    assert report["env_steps_per_s"] == pytest.approx(whole["env_steps_per_s"], rel=0.05)
    view = report_view(resumed)
    assert view.minutes == pytest.approx(7, abs=0.3)
    assert max(view.rate.x) == pytest.approx(view.minutes, abs=0.3)
    assert max(earlier - later for earlier, later in itertools.pairwise(view.rate.x)) < 0


def test_the_report_has_the_resolved_objective_and_the_kl_with_a_beta(materials):
    without = report_metrics.build_report(materials)
    assert without["trainer"]["kl_reference"] is None
    assert without["trainer"]["objective"] == {"name": "ppo", "clip_low": 0.2, "clip_high": 0.28, "kl_beta": 0.0}
    assert "kl_reference" not in report_view(materials).learning.lines
    trainer = Trainer(objective="gspo", kl_beta=0.1)
    learned = msgspec.structs.replace(materials, config=msgspec.structs.replace(materials.config, trainer=trainer))
    report = report_metrics.build_report(learned)
    assert report["trainer"]["kl_reference"] == {"mean": pytest.approx(0.0205), "max": 0.04}
    assert report["trainer"]["truncated_share"] == {"mean": 0.25, "max": 0.25}
    assert report["trainer"]["updates"] == 80
    view = report_view(learned)
    assert view.learning.lines["kl_reference"][-1] == 0.04
    assert view.report["trainer"]["objective"]["name"] == "gspo"


def test_the_report_has_computed_tokens_for_each_distinct_one(materials):
    computed = report_metrics.build_report(materials)["trainer"]["computed"]
    assert (computed["tokens_per_distinct"], computed["images_per_distinct"]) == (1.5, 1.25)
    assert computed["tokens_computed"] == 300 * computed["rows"] / 4
    step = events.trained_step(metrics={"loss": 0.0}, at_ms=materials.trained[0].at_ms)
    old = msgspec.structs.replace(materials, progress=fold(step))
    assert report_metrics.build_report(old)["trainer"]["computed"] is None


def test_an_order_is_lost_only_if_it_was_committed_and_finished_nowhere(materials):
    materials = msgspec.structs.replace(materials, progress=RunState())
    for offset in range(3):
        order = events.rollout_order(f"o{offset}")
        materials.progress.apply(RecordMetadata("rollout-orders", 1, offset, START), order)
    lags = [Lag("env", "rollout-orders", 1, 2, 3)]
    assert open_orders.lost_orders(materials.progress, lags) == ["o0", "o1"]
    assert open_orders.orders_under_way(materials.progress, lags) == ["o2"]


def test_a_report_of_a_run_that_did_nothing_has_no_figures_but_is_whole(materials):
    empty = msgspec.structs.replace(materials, progress=RunState(), journal=PhaseLog(), usage=[], lags=[])
    report = report_metrics.build_report(empty)
    assert report.keys() >= CONTRACT
    assert report["success_before"] is None
    assert report["episodes"] == 0
    view = report_view(empty)
    assert msgspec.json.encode(view)
    assert [view.success.x, view.rate.x, view.outcomes.x, view.phases, view.samples] == [[], [], [], (), []]


def test_the_curves_are_those_of_the_run(materials):
    view = report_view(materials)
    assert len(view.success.x) == len(materials.slices)
    assert view.success.x[0] == pytest.approx(0.09, abs=0.05)
    assert view.success.lines["smoothed"][-1] > view.success.lines["smoothed"][0] + 0.2, "it learns"
    assert len(view.published_min) == 41
    assert view.staleness.x == list(range(1, 41))
    assert max(view.staleness.lines["oldest"]) == view.report["staleness"]["max"]
    assert len(view.pauses.x) == 40
    assert set(view.outcomes.lines) == {"success", "failure", "truncated", "invalid_action"}
    for shares in zip(*view.outcomes.lines.values(), strict=True):
        assert sum(shares) == pytest.approx(1, abs=0.001)
    assert [phase.name for phase in view.phases][-1] == "drain"
    assert view.phases[5].ended_ms - view.phases[5].started_ms == 540_000
    assert view.slot_shares.x == [], "its workers wrote no metrics"


def test_faults_are_named_and_counted_by_kind_and_so_are_deaths(materials):
    assert report_metrics.build_report(materials)["env_faults"] == []
    faults = {(f"osworld/os/{n}#0", "env-0"): EnvFaults(n + 1, f"<b>{n}</b>" + "x" * 1000) for n in range(30)}
    materials.progress.env_faults.update(faults)
    try:
        report = report_metrics.build_report(materials)
    finally:
        materials.progress.env_faults.clear()
    assert [fault["episodes"] for fault in report["env_faults"]] == list(range(30, 10, -1))
    assert (report["env_faults"][0]["task"], report["env_faults"][0]["host"]) == ("osworld/os/29#0", "env-0")
    assert len(report["env_faults"][0]["reason"]) == 300
    journal = materials.journal.with_death("env-0", "exit code 139", "Segmentation fault", 7)
    report = report_metrics.build_report(msgspec.structs.replace(materials, journal=journal))
    death = {"process": "env-0", "reason": "exit code 139", "times": 1, "last_line": "Segmentation fault", "at_ms": 7}
    death["restarts"] = 1
    assert (report["deaths"], report_metrics.build_report(materials)["deaths"]) == ([death], [])
    materials.progress.env_fault_kinds.add("step() raised ValueError: x")
    try:
        materials.progress.env_fault_kinds.add("step() raised ValueError: y")
        found = report_metrics.build_report(materials)
        assert found["env_fault_kinds"] == {"step() raised ValueError": 2}
        assert found["fault_totals"] == {"env": 2, "policy": 0}
    finally:
        materials.progress.env_fault_kinds.counts.clear()


def test_the_file_refers_to_nothing_and_allows_only_its_own_scripts():
    archive = export.Archive({"run?": {"text": "</script><script>alert(1)</script>"}}, {"ab": b"GIF89a"})
    text = export.render(load_assets(None), archive, "dart.a<b")
    assert "<title>a&lt;b" in text
    assert "alert(1)" not in text
    addresses = re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']+""", text)
    assert addresses == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; ")
    started = scripts(text)
    assert [kind for kind, _ in started] == ["text/javascript", "importmap", "module"]
    for kind in ("script", "style"):
        inline = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        inline += [script for _, script in started] if kind == "script" else []
        digests = {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline}
        allowed = re.search(rf"{kind}-src ([^;]+)", policy)[1]
        assert set(re.findall(r"'sha256-([^']+)'", allowed)) == digests
        assert "unsafe" not in allowed
    assert started[1][1].count("data:text/javascript") > 20, "each of the page's own scripts"


def test_a_step_in_the_file_has_only_the_digits_and_fields_it_shows():
    place = {"trajectory_id": "t1", "step": 0, "index": 3, "token": 7}
    token = TrainedToken(**place, logprob=-0.123456789, log_ratio=1 / 3, weight=1.0, gradient_share=0.1)
    metrics = {"loss": 0.123456789, "tokens": 123456.0}
    state = fold(events.trained_step(trajectory_ids=["t1", "t2"], metrics=metrics, top_tokens=[token]))
    lean = export.trim_step(training.view_train_step(1, state)).event
    assert (lean.trajectory_ids, lean.metrics) == ([], {})
    short = lean.top_tokens[0]
    assert f"{math.exp(short.log_ratio):.4g}" == f"{math.exp(token.log_ratio):.4g}"
    assert len(str(short.log_ratio)) < 8
    assert export.trim_curves(training.metric_curves(state)).metrics["tokens"] == [123456.0], "a count is exact"


def test_a_script_cannot_end_its_element_and_a_style_that_would_is_refused():
    script = {"/vendor/uPlot.iife.min.js": Asset(b"'</script><b>'", "text/javascript")}
    text = export.render(load_assets(None) | script, export.Archive({}, {}), "dart.x")
    assert "</script><b>" not in text
    assert scripts(text)[0][1] == "'</script><b>'"
    style = {"/style.css": Asset(b"</style>", "text/css")}
    with pytest.raises(AssertionError):
        export.render(load_assets(None) | style, export.Archive({}, {}), "dart.x")


def test_samples_show_each_page_once_and_what_was_learnt_first(materials):
    before, after = report_metrics.read_evaluations(materials)
    pairs = choose_samples(before, after, 4)
    assert len({pair.task_id.partition("#")[0] for pair in pairs}) == 4
    assert (pairs[0].a.reward, pairs[0].b.reward) == (0.0, 1.0)
    tasks = [{one.trajectory.trajectory_id: one.task_id for one in result.episodes} for result in (before, after)]
    for pair in pairs:
        assert pair.task_id == tasks[0][pair.a.trajectory_id] == tasks[1][pair.b.trajectory_id]


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [
        ([(0, 1), (1, 0), (0, 0), (1, 1), (1, 0.5), (0, 1)], [1, 1, -1, -0.5]),
        ([(0, 1), (0, 1), (0, 1), (1, 1), (1, 0)], [1, 1, 1, -1]),
        ([(0, 1), (1, 1)], [1, 0]),
        ([(1, 0), (1, 0), (1, 0)], [-1, -1, -1]),
    ],
)
def test_samples_end_with_those_that_got_worse_up_to_half(rewards, wanted):
    def result(side: int) -> EvaluationResult:
        episodes = tuple(
            EvaluationEpisode(index, f"{PAGES[index]}#1", PAGES[index], events.trajectory(reward=float(pair[side])))
            for index, pair in enumerate(rewards)
        )
        return EvaluationResult(0, wilson_rate(0, 0), {}, episodes, 0)

    pairs = choose_samples(result(0), result(1), 4)
    found = [pair.b.reward - pair.a.reward for pair in pairs]
    assert found == wanted
    assert len({pair.task_id for pair in pairs}) == len(pairs)


def test_the_report_has_figures_of_imitation_if_any_step_imitated():
    imitating = {"imitation_weight": 0.5, "imitation_sequences": 30.0}
    rows = [
        {"loss": 0.1},
        {"loss": 0.1, "imitation_nll": 2.0, "imitation_share": 0.25, **imitating},
        {"loss": 0.1, "imitation_nll": 1.5, "imitation_share": 0.35, "sft_nll": 1.0, "sft_updates": 4.0, **imitating},
    ]
    assert trainer_figures.imitation_fields(rows) == {
        "steps": 2,
        "weight": 0.5,
        "share": 0.3,
        "nll": {"first": 2.0, "last": 1.5},
        "phases": {"steps": 1, "updates": 4},
    }
    assert trainer_figures.imitation_fields(rows[:1]) is None


@pytest.mark.parametrize(
    ("recipe", "steps", "line"),
    [([], 2, "2 optimizer steps;"), (["mobilerl", "ui-s1"], 1, "recipe mobilerl and ui-s1; 1 optimizer step;")],
)
def test_the_headline_names_the_recipes(recipe: list[str], steps: int, line: str):
    known = {"recipe": recipe, "success_before": None, "success_after": None, "lost": 0, "episodes": 9}
    assert format_headline(known | {"train_steps": steps}, Path("r.html")).startswith(line)
