"""A bundle decides again as it was decided, byte for byte; what differs is found at its first place, with its cause."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks import bundle as making
from benchmarks.curation_world import Odds, task_set
from console.bundles import whatif
from console.bundles.bundle_inputs import config_of, tasks_of
from console.bundles.replay import Outcome, replay
from console.runs import bundle as bundles
from console.runs.bundle import Bundle, BundleError, BundleRecord, Writer
from console.views.terminal import BARS
from dart_streams.config import parse
from dart_streams.errors import ConfigError
from tests.command_line import invoke

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle.v1.dart"
CONFIG = parse({"env": {"slots": 4}, "trainer": {"groups_per_step": 2}})
TASKS = task_set(6)
ODDS = Odds(faults=0.05, partial=0.1)
DIGEST = "ef35ee9afb792cf8c9d74ea514389d75"
BEFORE_DIALECTS = GOLDEN.with_name("bundle.before-dialects.v1.dart")
"""Made by the code of 22 November 2026 itself, before there were dialects, adapters, deltas, endpoints and trackers."""
BEFORE_DIALECTS_DIGEST = "27805fcaeb3472550b9480fd99127b25"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "run.dart"
    making.write(path, CONFIG, TASKS, making.play_rollouts(CONFIG, TASKS, 150, ODDS))
    return path


def altered(path: Path, topic: str, change: Callable[[list[BundleRecord]], list[BundleRecord]], **texts: str) -> Bundle:
    """Return the same bundle with a topic's records changed."""
    found = Bundle(path)
    other = path.with_name("altered.dart")
    with Writer(other, found.manifest) as bundle:
        for section in found.directory.sections:
            if section.kind == "text":
                name = section.name.partition(".")[0]
                bundle.text(section.name, texts.get(name, found.text(section.name)))
            elif section.kind == "blobs":
                bundle.blobs(found.blobs())
            else:
                records = list(found.records(section.name))
                bundle.records(section.name, change(records) if section.name == topic else records)
    return Bundle(other)


def faulted(records: list[BundleRecord]) -> list[BundleRecord]:
    """Make the first success a fault."""
    won = next(record.offset for record in records if b'"outcome":"success"' in record.value)
    return edit(records, won, outcome="env_error", reward=None)


def edit(records: list[BundleRecord], offset: int, **fields) -> list[BundleRecord]:
    """Change fields of the event at an offset."""
    at = next(index for index, record in enumerate(records) if record.offset == offset)
    event = json.loads(records[at].value) | fields
    records[at] = msgspec.structs.replace(records[at], value=json.dumps(event, separators=(",", ":")).encode())
    return records


def test_a_bundle_from_before_dialects_replays_with_defaults():
    bundle = Bundle(BEFORE_DIALECTS)
    outcome = replay(bundle)
    assert outcome.equal
    assert outcome.digest == BEFORE_DIALECTS_DIGEST
    compared = {count.agent: count.bytes_compared for count in outcome.agents}
    assert compared == {"difficulty": 150, "budget": 150, "groups": 16, "dispatch": 160}
    config = config_of(bundle)
    assert (config.policy.dialect.name, config.rollout.engine, config.tracker.tool) == ("native", "vllm", "")
    assert not config.trainer.publishes_parts
    assert bundles.verify(BEFORE_DIALECTS)


def test_the_golden_bundle_replays_equally_three_times():
    outcomes = [replay(Bundle(GOLDEN)) for _ in range(3)]
    assert [outcome.digest for outcome in outcomes] == [DIGEST] * 3
    assert all(outcome.equal for outcome in outcomes)
    assert {count.agent for count in outcomes[0].agents} == {"difficulty", "budget", "groups", "dispatch"}
    assert all(count.decisions == count.bytes_compared > 0 for count in outcomes[0].agents)


def test_a_decision_that_was_rounded_otherwise_is_equal_and_counted(made: Path):
    def changed(by: float) -> Outcome:
        def change(records: list[BundleRecord]) -> list[BundleRecord]:
            first = json.loads(records[0].value)
            return edit(records, records[0].offset, std=first["std"] * (1 + by))

        return replay(altered(made, "curated", change))

    assert changed(1e-15).equal and [count.rounded for count in changed(1e-15).agents if count.agent == "groups"] == [1]
    assert changed(1e-6).divergence.agent == "groups"


def test_the_generator_makes_the_same_bundle_again(made: Path, tmp_path: Path):
    making.write(tmp_path / "again.dart", CONFIG, TASKS, making.play_rollouts(CONFIG, TASKS, 150, ODDS))
    assert (tmp_path / "again.dart").read_bytes() == made.read_bytes()


def test_a_changed_input_or_decision_is_found_at_its_first_place(made: Path):
    bundle = altered(made, "trajectories", faulted)
    found = replay(bundle).divergence
    assert found.agent in ("difficulty", "groups")
    assert found.input.startswith("trajectories[0]@")
    assert found.recorded != found.replayed
    assert "decided on differently" in found.cause
    bundle = altered(made, "rollout-budgets", lambda records: edit(records, 9, reason="by hand"))
    found = replay(bundle).divergence
    assert (found.agent, found.what) == ("budget", "bytes of budget/task-difficulty/0/9")
    assert "by hand" in found.recorded
    assert "by hand" not in found.replayed


def test_other_settings_lost_inputs_and_a_log_with_a_hole_are_distinct(made: Path):
    text = Bundle(made).text("config.toml").replace("keep = 0.8", "keep = 0.3")
    outcome = replay(altered(made, "", list, config=text))
    assert not outcome.equal
    assert outcome.divergence.agent == "groups"
    lost = replay(altered(made, "trajectories", lambda records: records[5:])).divergence
    assert "retention" in lost.cause
    holed = replay(altered(made, "curation-log", lambda records: records[:30] + records[36:])).divergence
    assert (holed.what, holed.cause.partition(":")[0]) == ("log", "the log lacks an input before this one")


def test_an_entry_of_any_offset_is_looked_up_and_counts_once(made: Path):
    def far(records: list[BundleRecord]) -> list[BundleRecord]:
        more = msgspec.structs.replace(records[-1], offset=records[-1].offset + 1)
        return edit([*records, more], more.offset, source=json.loads(more.value)["source"] | {"offset": 10**12})

    assert replay(altered(made, "curation-log", far)).divergence.what == "input"

    def repeated(records: list[BundleRecord]) -> list[BundleRecord]:
        last = records[-1].offset
        return [*records, *(msgspec.structs.replace(r, offset=last + 1 + n) for n, r in enumerate(records[40:60]))]

    assert replay(altered(made, "curation-log", repeated)) == replay(Bundle(made))


def test_records_of_a_newer_schema_say_to_upgrade(made: Path):
    def newer(records: list[BundleRecord]) -> list[BundleRecord]:
        headers = [(name, b"curation-log/9" if name == "schema" else value) for name, value in records[3].headers]
        return [*records[:3], msgspec.structs.replace(records[3], headers=headers), *records[4:]]

    with pytest.raises(BundleError, match=r"newer than this program's.*upgrade"):
        replay(altered(made, "curation-log", newer))


def test_the_exit_code_and_json_have_the_outcome(made: Path):
    equal = invoke("replay", str(made), "--json")
    assert equal.exit_code == 0
    assert json.loads(equal.stdout)["equal"] is True
    other = altered(made, "trajectories", faulted)
    differs = invoke("replay", str(other.path))
    assert differs.exit_code == 1
    assert "recorded:" in differs.stdout
    assert "cause:" in differs.stdout


def what_if(path: Path, *settings: str) -> list[whatif.WhatIfMetrics]:
    bundle = Bundle(path)
    variants = {setting: config_of(bundle, [setting]) for setting in settings}
    return whatif.compare(whatif.RecordedOutcomes(bundle), tasks_of(bundle), config_of(bundle), variants)


def test_the_run_s_settings_give_about_the_recorded_metrics(made: Path):
    recorded, own = what_if(made)
    assert own.rollouts_ended == recorded.rollouts_ended == 150
    assert own.borrowed == 0
    assert abs(own.groups_formed - recorded.groups_formed) <= 3
    assert own.steps_trained == own.groups_formed // CONFIG.trainer.groups_per_step


def test_what_if_fewer_steps_or_smaller_groups_are_of_the_same_rollouts(made: Path):
    _, own, fewer = what_if(made, "curation.entropy.keep=0.4")
    assert fewer.groups_formed == own.groups_formed
    assert fewer.samples < own.samples
    assert fewer.samples + fewer.samples_saved == own.samples + own.samples_saved
    _, own, smaller = what_if(made, "curation.budget.base=3")
    assert smaller.groups_opened > own.groups_opened
    assert smaller.rollouts_ended == own.rollouts_ended


def test_an_invalid_setting_is_refused_by_name(made: Path):
    with pytest.raises(ConfigError, match=r"curation.entropy.kep.*did you mean 'keep'"):
        what_if(made, "curation.entropy.kep=0.4")
    with pytest.raises(ConfigError, match="give key=value"):
        what_if(made, "keep")


def test_a_what_if_prints_a_table_bars_and_a_plot(made: Path, tmp_path: Path):
    plot = tmp_path / "plot.svg"
    settings = ("--set", "curation.pool.enabled=false", "--set", "curation.budget.base=3")
    result = invoke("replay", str(made), *settings, "--plot", str(plot))
    assert result.exit_code == 0, result.output
    assert "all of these" in result.stdout
    assert BARS[0] in result.stdout
    assert plot.read_text().startswith("<svg")
