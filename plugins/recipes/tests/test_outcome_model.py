"""The outcome model: its values by hand, its pretraining on recorded runs, and what it does in a circle."""

import hashlib
import math
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks import bundle as bundles
from benchmarks import curation_world
from benchmarks.curation_world import Odds
from console.bundles.bundle_inputs import bundle_events
from console.bundles.dispatch_events import dispatch_events
from console.bundles.replay import replay
from console.cli.main import build_app
from console.runs.bundle import Bundle
from dart_recipes.outcome_model import model, pretrain, rules
from dart_streams.config import Config, load, parse
from dart_streams.config.tasks import Page, TaskSet, page_of
from dart_streams.curation.hooks import Own, TaskFinish, Turn
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.task_scheduler import PATIENCE, TaskState
from dart_streams.errors import ConfigError, UserError
from plugins.recipes.tests.agents import ROOT
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling

RECORDED = ROOT / "tests/unit/golden/bundle.before-dialects.v1.dart"
NAME = "outcome-model"


def order(task_id: str, group: int = 0) -> RolloutOrder:
    return RolloutOrder(
        order_id=f"g{group:06}/0/0",
        group_id=f"g{group:06}",
        group_size=2,
        sample=0,
        attempt=0,
        task_id=task_id,
        max_steps=15,
        purpose="train",
        sampling=Sampling(),
        after_version=0,
    )


def test_features_are_what_is_known_before_an_episode():
    """Of 3 successes and a failure the smoothed log odds are log(4 / 2); log2(1 + 15) / 4 is 1."""
    recent = model.Recent()
    for success in (True, True, False, True):
        recent.add("miniwob/click-test-2#17", success)
    recent.add("miniwob/other#1", False)
    assert model.describe_task("miniwob/click-test-2#17", 15, recent) == {
        "bias": 1.0,
        "task": math.log(2),
        "siblings": math.log(2),
        "run": math.log(4 / 3),
        "tries": 4 / 16,
        "steps": 1.0,
        "page miniwob/click-test-2": 1.0,
        "word miniwob": 1.0,
        "word click": 1.0,
        "word test": 1.0,
        "word 2": 1.0,
    }


def test_a_bias_alone_fits_the_log_odds_of_the_mean():
    """3 successes of 4 have the log odds log(3), as the bias is not penalized."""
    weights = model.fit_weights([({"bias": 1.0}, success) for success in (True, True, True, False)])
    assert weights == pytest.approx({"bias": math.log(3)}, abs=1e-4)


def test_a_fit_is_where_the_penalized_loss_has_no_slope():
    """With the weight w of a feature of n successes alone: n (1 - p(w)) = w at the minimum, for the penalty 1."""
    weights = model.fit_weights([({"only": 1.0}, True)] * 10)
    assert 10 * (1 - model.success_probability({"only": 1.0}, weights)) == pytest.approx(weights["only"], abs=1e-4)


@pytest.mark.parametrize(
    ("scored", "area"),
    [
        ([(0.1, False), (0.4, False), (0.35, True), (0.8, True)], 0.75),
        ([(1.0, False), (1.0, True)], 0.5),
        ([(2.0, False), (1.0, True)], 0.0),
        ([(1.0, True), (2.0, True)], None),
        ([], None),
    ],
)
def test_the_area_counts_pairs_in_the_right_order(scored, area):
    assert model.area_under_curve(scored) == area


@pytest.mark.parametrize(("success", "weight"), [(0.5, 1.0), (0.75, 0.75), (0.25, 0.75), (0.999, 0.1), (0.0001, 0.1)])
def test_a_task_has_the_weight_of_its_predicted_gain(success, weight):
    content = model.OutcomeModel(weights={"bias": math.log(success / (1 - success))})
    own = Own(rules.Settings(), model.Outcomes(), lambda: content)
    assert rules.turn_weight(own, Turn("a#0", TaskState(), 0)) == pytest.approx(weight)
    assert rules.turn_weight(own, Turn("a#0", TaskState(skips=PATIENCE - 1), 0)) == 1.0, "never passed over for good"


def test_a_finish_changes_the_weights_by_a_step_of_the_loss():
    """From p = 0.5 with the rate 0.1 a success adds 0.05 x each feature as it was at the opening; a fault nothing."""
    own = Own(rules.Settings(rate=0.1), model.Outcomes(), model.OutcomeModel)
    rules.learn_finish(own, order("a#0"))
    known = model.describe_task("a#0", 15, model.Recent())
    rules.learn_finish(own, TaskFinish("a#0", 0, False, False, rewarded=False))
    assert own.memory.change == {}
    rules.learn_finish(own, TaskFinish("a#0", 0, True, False))
    assert own.memory.change == pytest.approx({name: 0.05 * value for name, value in known.items()})
    before = dict(own.memory.change)
    rules.learn_finish(own, TaskFinish("a#0", 0, False, True))
    step = 0.1 * model.success_probability(known, before)
    assert own.memory.change == pytest.approx({name: before[name] - step * value for name, value in known.items()})
    assert own.memory.recent.outcomes["a#0"] == [True, False]


def test_a_rate_of_nothing_leaves_the_model_as_it_is():
    own = Own(rules.Settings(rate=0.0), model.Outcomes(), model.OutcomeModel)
    rules.learn_finish(own, order("a#0"))
    rules.learn_finish(own, TaskFinish("a#0", 0, True, True))
    assert own.memory.change == {}


@pytest.fixture
def pretrained(tmp_path: Path) -> tuple[Path, str]:
    """Pretrain a model on a recorded run; return its file and sha256."""
    file = tmp_path / "model.json"
    file.write_bytes(msgspec.json.encode(pretrain.pretrain([dispatch_events(Bundle(RECORDED))])))
    return file, hashlib.sha256(file.read_bytes()).hexdigest()


def config_with(file: Path, sha256: str, **settings: float) -> Config:
    return parse(
        {
            "recipe": NAME,
            "recipes": {NAME: {"model_file": str(file), "sha256": sha256} | settings},
            "env": {"slots": 16},
        }
    )


def test_a_model_is_checked_against_its_sha256(pretrained, tmp_path):
    file, sha256 = pretrained
    bind_rules(config_with(file, sha256))
    with pytest.raises(ConfigError, match=f"has the sha256 {sha256}: expected 00"):
        bind_rules(config_with(file, "00"))
    with pytest.raises(ConfigError, match="name it, so that a replay has the same file"):
        bind_rules(config_with(file, ""))
    with pytest.raises(ConfigError, match=r"gone.json can't be read: No such file"):
        bind_rules(config_with(tmp_path / "gone.json", sha256))
    bind_rules(config_with(tmp_path / "gone.json", sha256), load=False)
    file.write_text("{}x")
    with pytest.raises(ConfigError, match="is no outcome model"):
        bind_rules(config_with(file, hashlib.sha256(b"{}x").hexdigest()))
    file.write_text('{"format": 2}')
    with pytest.raises(ConfigError, match="has the format 2"):
        bind_rules(config_with(file, hashlib.sha256(b'{"format": 2}').hexdigest()))


def test_a_model_is_found_beside_the_configuration_file(tmp_path):
    (tmp_path / "run.toml").write_text(f'recipe = "{NAME}"\n[recipes.{NAME}]\nmodel_file = "model.json"\n')
    assert load(tmp_path / "run.toml").recipes[NAME]["model_file"] == str(tmp_path / "model.json")


def test_a_recorded_run_yields_the_events_of_its_dispatch():
    """Each order of the log, and each finish: 138 with a reward, and 2 of 12 faults, of last attempts."""
    bundle = Bundle(RECORDED)
    noted = list(dispatch_events(bundle))
    assert [event for event in noted if isinstance(event, RolloutOrder)] == [
        *bundle_events(bundle, rollout_orders.TOPIC)
    ]
    finishes = [event for event in noted if isinstance(event, TaskFinish)]
    assert (len(finishes), sum(finish.rewarded for finish in finishes)) == (140, 138)


def test_pretraining_predicts_later_outcomes_of_a_recorded_run():
    learned = pretrain.pretrain([dispatch_events(Bundle(RECORDED))])
    areas = {each.name: each for each in learned.report()}
    assert learned.training.examples == 138
    later = areas["later groups"]
    assert later.low < later.area < later.high and later.examples == 41
    assert later.area > 0.6 and later.low > 0.5
    assert pretrain.pretrain([dispatch_events(Bundle(RECORDED))]) == learned, "the same of the same run"


def test_the_command_writes_a_model_and_the_keys_that_choose_it(tmp_path):
    app = build_app(["data"])
    file = tmp_path / "model.json"
    arguments = ["data", "pretrain", NAME, str(RECORDED), "--output", str(file)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "later groups" in result.output
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f'model_file = "{file}"' in result.stderr and f'sha256 = "{sha256}"' in result.stderr
    bind_rules(config_with(file, sha256))
    with pytest.raises(UserError, match="exists"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    with pytest.raises(UserError, match="'dart' learns nothing before a run"):
        CliRunner().invoke(app, ["data", "pretrain", "dart", str(RECORDED), "-o", "x"], catch_exceptions=False)


def test_one_outcome_alone_teaches_nothing():
    with pytest.raises(UserError, match="1 rollouts with 1 successes"):
        pretrain.pretrain([[order("a#0"), TaskFinish("a#0", 0, True, True)]])


def test_a_replay_has_the_same_bytes_and_needs_the_same_file(pretrained, tmp_path):
    file, sha256 = pretrained
    config, tasks = config_with(file, sha256), curation_world.task_set(6)
    circle = bundles.play_rollouts(config, tasks, 120, Odds(faults=0.02))
    bundles.write(tmp_path / "run.dart", config, tasks, circle)
    outcome = replay(Bundle(tmp_path / "run.dart"))
    assert outcome.equal and sum(count.bytes_compared for count in outcome.agents) > 300
    file.write_text("{}")
    with pytest.raises(ConfigError, match="expected " + sha256):
        replay(Bundle(tmp_path / "run.dart"))


def mixed_tasks() -> TaskSet:
    """Return tasks of three pages, of which two teach nothing."""
    return TaskSet(
        [
            Page(environment="simulated", page=page, max_steps=9, train_seeds=(0, 8), heldout_seeds=(90, 91))
            for page in ("always", "never", "sometimes")
        ]
    )


def test_a_pretrained_model_orders_what_can_be_learned_from_the_beginning(tmp_path, monkeypatch):
    """A run with the model of an earlier one opens more groups that are trained on, of the same number of rollouts."""
    rates = {"simulated/always": 0.98, "simulated/never": 0.02, "simulated/sometimes": 0.5}
    monkeypatch.setattr(curation_world, "success_rate", lambda task_id, *_: rates[page_of(task_id)])
    tasks = mixed_tasks()
    first = parse({"env": {"slots": 16}})
    circle = bundles.play_rollouts(first, tasks, 300, Odds(), seed=1)
    bundles.write(tmp_path / "run.dart", first, tasks, circle)
    learned = pretrain.pretrain([dispatch_events(Bundle(tmp_path / "run.dart"))])
    file = tmp_path / "model.json"
    file.write_bytes(msgspec.json.encode(learned))
    areas = {each.name: each.area for each in learned.report()}
    assert areas["other tasks"] > areas["other tasks, recent rate alone"]
    config = config_with(file, hashlib.sha256(file.read_bytes()).hexdigest())
    dart, ours = (bundles.play_rollouts(each, tasks, 200, Odds(), seed=2) for each in (first, config))
    orders = [[page_of(one.event.task_id) for one in each.logs["rollout-orders"]] for each in (dart, ours)]
    shares = [pages.count("simulated/sometimes") / len(pages) for pages in orders]
    assert shares[1] > 0.6 > shares[0]
    assert len(ours.logs["curated"]) > len(dart.logs["curated"])
