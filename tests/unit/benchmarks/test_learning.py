"""The benchmark of learning without its model: variants, recorded pages, episodes on them, and the table of runs."""

import math
import random
import tomllib
from pathlib import Path

import msgspec
import pytest

from benchmarks.learning import report, results, screens, variants
from benchmarks.learning.episodes import RecordedEpisode, play, play_demonstration, single_order
from benchmarks.learning.results import CurvePoint, Evaluated, LearningRun
from benchmarks.learning.screens import ClickResult, Landing
from dart_streams.actions import Click, Drag, Wait
from dart_streams.config import parse, tasks
from dart_streams.config.tables import key_values
from dart_streams.episodes.guidance import recorded_answers
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.errors import ConfigError, UserError
from tests import events
from tests.unit.benchmarks import learning_pages
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.rollout_orders import Guide
from topics.values import Sampling, VersionSpan

TASKS = learning_pages.task_set()
RECORDING = learning_pages.recording(TASKS)
POLICY = parse({"policy": {"max_images": 1}}).policy
BESIDE = Click(0, 0)


def test_each_shipped_curation_variant_disables_just_its_rule():
    found = variants.read()
    assert next(iter(found)) == "base"
    rules = {
        "fixed-rollouts": "budget",
        "fixed-length": "length",
        "all-steps": "entropy",
        "no-pool": "pool",
        "even-choice": "dispatch",
    }
    base = msgspec.to_builtins(found["base"])
    for name, rule in rules.items():
        own = msgspec.to_builtins(found[name])
        assert differing(base, own) == {"curation"}
        assert differing(base["curation"], own["curation"]) == {rule}
        assert own["curation"][rule] == msgspec.to_builtins(found["no-rules"].curation)[rule]
    none = msgspec.to_builtins(found["no-rules"])
    assert differing(base["curation"], none["curation"]) == set(rules.values())


def test_each_idea_of_dart_is_a_variant_of_the_base_without_any():
    found = variants.read(variants.FILE.with_name("ideas.toml"))
    switches = {
        "rollout-number": ("curation.budget.dynamic", True),
        "trajectory-length": ("curation.length.dynamic", True),
        "entropy-steps": ("curation.entropy.keep", 0.8),
        "importance-weights": ("trainer.correction", "truncate"),
        "pool": ("curation.pool.enabled", True),
    }
    flat = {name: dict(key_values(msgspec.to_builtins(config))) for name, config in found.items()}
    for name, (key, on) in switches.items():
        assert differing(flat["base"], flat[name]) == {key}
        assert flat[name][key] == flat["all"][key] == on
    assert differing(flat["base"], flat["all"]) == {"recipe", *(key for key, _ in switches.values())}
    for name, keys in {
        "task-wise": {"curation.dispatch.mode"},
        "coupled": {"curation.dispatch.mode"},
        "one-worker-at-a-time": {"rollout.workers"},
        "informative-choice": {"curation.dispatch.choice"},
    }.items():
        assert differing(flat["all"], flat[name]) == keys
    assert found["one-worker-at-a-time"].rollout.roll_width == 1


def differing(one: dict, other: dict) -> set[str]:
    return {key for key in one if one[key] != other[key]}


def test_shipped_variants_are_distinct_and_named_ones_come_with_the_base():
    found = variants.read()
    assert len({msgspec.json.encode(config) for config in found.values()}) == len(found) > 15
    listed = tomllib.loads(variants.FILE.read_text())["variants"]
    assert list(found) == ["base", *listed]
    assert list(variants.select_variants(variants.read(), ["kl"])) == ["base", "kl"]
    assert variants.select_variants(variants.read(), []) == variants.read()
    with pytest.raises(ConfigError, match="no variant 'nothing': known are base, "):
        variants.select_variants(variants.read(), ["nothing"])


def write_variants(folder: Path, text: str) -> Path:
    (folder / "base.toml").write_text('tasks.file = "t.toml"\ntrainer.learning_rate = 1e-3\n')
    file = folder / "variants.toml"
    file.write_text(f'deployment = "base.toml"\n{text}')
    return file


def test_a_variant_keeps_what_it_does_not_name_of_the_base(tmp_path: Path):
    found = variants.read(write_variants(tmp_path, 'variants.other.trainer.objective = "gspo"\n'))
    assert found["other"].trainer.objective == "gspo"
    assert found["other"].trainer.learning_rate == found["base"].trainer.learning_rate == 1e-3
    assert found["base"].tasks.file == str(tmp_path / "t.toml")
    text = 'tasks = "clicks.toml"\nbase.warmup.steps = 7\nvariants.other.trainer.objective = "gspo"\n'
    found = variants.read(write_variants(tmp_path, text))
    for config in found.values():
        assert (config.tasks.file, config.warmup.steps) == (str(tmp_path / "clicks.toml"), 7)
        assert config.trainer.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("variants.same.trainer.learning_rate = 1e-3", "'same' must differ"),
        ("variants.base.trainer.learning_rate = 2e-3", "'base' must differ"),
        ("variants.wrong.trainer.lr = 1", "variant 'wrong'"),
        ("unknown = 1\n[variants]", "unknown"),
    ],
)
def test_a_variant_that_is_none_is_refused(tmp_path: Path, text: str, error: str):
    with pytest.raises(ConfigError, match=error):
        variants.read(write_variants(tmp_path, text))


def test_only_a_click_on_a_part_does_something():
    task = next(task for task in TASKS.train if task.page == "two").task_id
    start = RECORDING.problems[task].states[""]
    x, y = start.oracle or (0, 0)
    assert RECORDING.act(task, "", Click(x, y)) == Landing("1", False, 0.0)
    assert RECORDING.act(task, "", Click(x, y, count=2)) == Landing("1", False, 0.0)
    for action in (BESIDE, Wait(), Click(x, y, "right"), Drag(x, y, x, y)):
        assert RECORDING.act(task, "1", action) == Landing("1", False, 0.0)


def test_a_click_that_was_not_recorded_is_refused():
    task = TASKS.train[0].task_id
    problem = RECORDING.problems[task]
    unclicked = msgspec.structs.replace(problem.states[""], clicks={2: ClickResult(True, 0.0)})
    recording = screens.Recording({task: screens.RecordedProblem("", {"": unclicked})}, {})
    with pytest.raises(UserError, match="is not recorded"):
        recording.act(task, "", Click(*(unclicked.oracle or BESIDE)))


def test_a_recording_round_trips_and_a_missing_one_is_refused(tmp_path: Path):
    file = screens.file_of(tmp_path / "deep", TASKS)
    with pytest.raises(UserError, match="bench learning"):
        screens.read(file)
    screens.write(file, RECORDING)
    assert screens.read(file) == RECORDING
    assert list(file.parent.iterdir()) == [file]
    assert screens.file_of(tmp_path / "deep", learning_pages.task_set(train=7)) != file, "of another task set"


def answering(text: str):
    def answer(requests: list[ActionRequest]) -> list[ActionResponse]:
        return [
            events.action_response(
                text,
                to=request,
                tokens=[1, 2],
                logprobs=[-1.0, -0.5],
                entropies=[1.0, 0.5],
                versions=[VersionSpan(version=3, start=0, end=2)],
            )
            for request in requests
        ]

    return answer


def begun(task: tasks.Task) -> RecordedEpisode:
    return RecordedEpisode.begin(RECORDING, POLICY, single_order(task, "train", 0, Sampling()), task.max_steps)


@pytest.mark.parametrize("task", [*TASKS.train, *TASKS.demonstration], ids=lambda task: task.task_id)
def test_the_oracle_solves_every_recorded_problem(task: tasks.Task):
    shown = summarize(play_demonstration(RECORDING, POLICY, single_order(task, "demonstration", 0, Sampling()), 2))
    assert (shown.outcome, shown.reward, shown.steps) == ("success", 1.0, 1 if task.page == "one" else 2)


def test_episodes_end_at_their_limits_or_an_answer_that_is_no_action():
    played = play([begun(task) for task in TASKS.train], answering("Action: click(start_box='(0,0)')"))
    for task, observations in zip(TASKS.train, played, strict=True):
        shown = summarize(observations)
        assert (shown.outcome, shown.steps) == ("truncated", task.max_steps)
        assert (shown.task_id, shown.version_min, shown.step_entropies) == (task.task_id, 3, [0.75] * task.max_steps)
        assert [seen.screenshot is None for seen in observations] == [False] * task.max_steps + [True]
    [observations] = play([begun(TASKS.train[0])], answering("Click it"))
    assert summarize(observations).outcome == "invalid_action"


@pytest.mark.parametrize(
    ("fields", "recorded", "kind"),
    [
        ({"mode": "prefix", "share": 0.5, "single": True}, [0], "failure"),
        ({"mode": "patches", "patches": 2}, [0, 1], "success"),
        ({"mode": "patches", "patches": 1}, [0], "failure"),
    ],
)
def test_recorded_actions_are_executed_as_in_a_worker(fields: dict, recorded: list[int], kind: str):
    task = next(task for task in TASKS.train if task.page == "two")
    shown = play_demonstration(RECORDING, POLICY, single_order(task, "demonstration", 0, Sampling()), task.max_steps)
    guide = Guide(trajectory_id=shown[0].trajectory_id, **fields)
    order = msgspec.structs.replace(single_order(task, "train", 0, Sampling()), guide=guide)
    episode = RecordedEpisode.begin(RECORDING, POLICY, order, task.max_steps)
    episode.be_guided(recorded_answers(guide.trajectory_id, shown))
    [observations] = play([episode], answering("Action: click(start_box='(0,0)')"))
    trajectory = summarize(observations)
    assert (trajectory.outcome, trajectory.recorded_steps, trajectory.guided) == (kind, recorded, True)


def run(variant: str, seed: int, before: float, after: float, half: float = 0.0) -> LearningRun:
    def at(rate: float) -> list[Evaluated]:
        return [Evaluated(1.0, rate, {"p": rate}), Evaluated(0.5, half, {}), Evaluated(0.0, half, {})]

    curve, common = [CurvePoint(0, before), CurvePoint(100, after)], {"made_by": "x", "steps": 10, "cpu_s": 1.0}
    return LearningRun(
        variant=variant, seed=seed, before=at(before), curve=curve, after=at(after), metrics={}, **common
    )


RUNS = [
    run("base", 0, 0.4, 0.5),
    run("other", 0, 0.4, 0.6),
    run("base", 1, 0.4, 0.7),
    run("other", 1, 0.4, 0.82),
    run("alone", 7, 0.4, 0.9),
    run("base", 2, 0.4, 0.6),
    run("other", 2, 0.4, 0.74),
]


def test_a_variant_is_compared_with_the_base_seed_by_seed():
    base, other = report.compare_variants(RUNS)
    assert (base.variant, base.seeds, base.differences) == ("base", 3, {})
    assert (other.variant, other.seeds) == ("other", 3)
    assert base.gains[1.0].mean == pytest.approx(0.2)
    assert other.differences[1.0].mean == pytest.approx(0.12)
    assert other.differences[1.0].error == pytest.approx(0.02 / math.sqrt(3))
    assert other.differences[1.0].half == pytest.approx(4.303 * 0.02 / math.sqrt(3))
    assert other.differences[1.0].excludes_zero
    assert not base.gains[1.0].excludes_zero
    assert not other.differences[0.5].excludes_zero, "no difference at all"


def test_success_on_the_training_tasks_is_compared_where_it_was_measured():
    rates = {"base": (0.5, 0.6, 0.7), "other": (0.6, 0.72, 0.84)}
    runs = [
        msgspec.structs.replace(run(name, seed, 0.4, 0.5), train_after=Evaluated(1.0, rate, {}))
        for name, of_seeds in rates.items()
        for seed, rate in enumerate(of_seeds)
    ]
    base, other = report.compare_variants(runs)
    assert base.trained.mean == pytest.approx(0.6) and base.trained_difference is None
    assert other.trained_difference.mean == pytest.approx(0.12) and other.trained_difference.excludes_zero
    assert [row.trained_to_base for row in report.table_rows([base, other])] == ["", "+12.0 ± 5.0 *"]
    [without, _] = report.compare_variants(RUNS)
    assert without.trained is None and report.table_rows([without])[0].trained == ""


def test_a_variant_that_starts_lower_gains_more_and_ends_the_same():
    lower = [run("lower", 0, 0.1, 0.5), run("lower", 1, 0.1, 0.7)]
    base, compared = report.compare_variants([*RUNS[:1], RUNS[2], *lower])
    assert compared.differences[1.0].mean == pytest.approx(0.3)
    assert compared.ends[1.0].mean == base.ends[1.0].mean == pytest.approx(0.6)
    assert (compared.end_differences[1.0].mean, base.end_differences) == (0, {})
    [_, row] = report.table_rows([base, compared])
    assert (row.end, row.end_to_base) == ("60.0 ± 127.1", "+0.0 ± 0.0")


def test_an_interval_covers_the_mean_and_one_without_zero_is_marked():
    base, other = report.table_rows(report.compare_variants(RUNS))
    assert (base.sampled, base.sampled_to_base) == ("+20.0 ± 24.8", "")
    assert other.sampled_to_base == "+12.0 ± 5.0 *"
    [single, more] = report.table_rows(report.compare_variants(RUNS[:2]))
    assert (single.seeds, single.sampled, more.sampled_to_base) == (1, "+10.0", "+10.0")
    chance = random.Random(0)
    trials = [report.estimate([chance.gauss(1.0, 0.3) for _ in range(4)]) for _ in range(2000)]
    covered = sum(abs(trial.mean - 1.0) <= trial.half for trial in trials)
    assert 0.93 < covered / len(trials) < 0.97


def test_curves_are_drawn_with_their_intervals(tmp_path: Path):
    assert report.learning_curves(RUNS)["other"][-1] == (100, report.estimate([0.6, 0.82, 0.74]))
    report.draw(RUNS, tmp_path / "deep" / "curves.svg")
    assert (tmp_path / "deep" / "curves.svg").read_text().count("<svg") == 1


def test_runs_are_read_as_they_were_added(tmp_path: Path):
    file = tmp_path / "deep" / "runs.jsonl"
    assert results.read(file) == []
    for one in RUNS:
        results.append(file, one)
    assert results.read(file) == RUNS


def test_what_decides_a_run_names_its_maker():
    base, other = parse({}), parse({"trainer": {"objective": "gspo"}})
    made = results.made_by(base, "screens", 100)
    assert made == results.made_by(base, "screens", 100)
    others = [(other, "screens", 100), (base, "other", 100), (base, "screens", 200)]
    assert len({made, *(results.made_by(*one) for one in others)}) == 4
    assert all((screens.ROOT / source).exists() for source in (*results.SOURCES, *screens.SOURCES))
