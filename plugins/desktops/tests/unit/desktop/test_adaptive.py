"""Tasks of adaptive applications: what solves them, and how a phone differs from a desktop."""

import base64
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.desktop import adaptive, families
from dart_desktops.desktop.families import problem_of
from dart_desktops.desktop.inputs import input_events, touch_events
from dart_desktops.desktop.problem import LARGE, PHONE, SessionOutcome
from dart_desktops.osworld.backend import OsworldBackend
from dart_streams import actions
from dart_streams.config import Config, Env, Osworld, load
from dart_streams.config.tasks import Task
from tests.sources import ROOT
from workers.env.environment import EnvironmentFault


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@given(st.sampled_from(sorted(adaptive.FAMILIES)), st.integers(0, 10**6))
def test_a_task_is_of_its_seed_and_its_start_does_not_solve_it(family, seed):
    problem, again = problem_of(family, seed), problem_of(family, seed)
    assert (problem.instruction, problem.session(PHONE)) == (again.instruction, again.session(PHONE))
    state = {path: None for path in problem.watched}
    state |= {path: encode(problem.files[path]) for path in problem.watched if path in problem.files}
    if "files" in state:
        state["files"] = sorted(path.removeprefix("files/") for path in problem.files if path.startswith("files/"))
    assert not problem.solved(SessionOutcome(None, "", state), [])


@pytest.mark.parametrize("family", adaptive.FAMILIES)
def test_seeds_of_a_phones_family_give_different_tasks(family):
    assert len({problem_of(family, seed).instruction for seed in range(40)}) >= 8


def test_a_change_besides_the_task_is_worth_nothing():
    problem = problem_of("number", 0)
    key, value = re.fullmatch(r"Set (\S+) to (\S+)\.", problem.instruction).groups()
    settings = adaptive.read_settings(problem.files[adaptive.SETTINGS])
    ((group, values),) = settings.items()
    values[key] = value
    for further, solved in (({}, True), ({"x": "1"}, False)):
        text = adaptive.write_settings({group: {**values, **further}, adaptive.OWN_GROUP: {"behaviour": "'safe'"}})
        assert problem.solved(SessionOutcome(None, "", {adaptive.SETTINGS: encode(text)}), []) is solved
    assert not problem.solved(SessionOutcome(None, "", {adaptive.SETTINGS: encode("no settings")}), [])


def test_what_was_deleted_into_the_trash_is_not_deleted_permanently():
    problem = problem_of("discard", 0)
    chosen = problem.instruction.split()[1]
    left = sorted(path.removeprefix("files/") for path in problem.files if path.startswith("files/"))
    left.remove(chosen)
    assert problem.solved(SessionOutcome(None, "", {"files": left, adaptive.TRASH: None}), [])
    assert not problem.solved(SessionOutcome(None, "", {"files": left, adaptive.TRASH: [chosen]}), [])


def test_a_phone_has_no_frames_and_its_screen_by_default():
    phone, desktop = problem_of("folder", 0), problem_of("answer", 0)
    assert phone.screen((320, 240)) == phone.screen(PHONE) == PHONE
    assert phone.screen(LARGE) == LARGE
    assert not phone.session(PHONE)["frames"]
    assert not phone.session(PHONE)["ends"]
    assert desktop.session(PHONE)["frames"]
    assert "ends" not in desktop.session(PHONE)


def test_the_right_button_of_a_phone_is_a_long_press():
    held = [["move", 3, 4], ["press", "left"], ["rest"], ["release", "left"]]
    assert touch_events(actions.Click(3, 4, "right")) == held
    for action in (actions.Click(3, 4), actions.Type("a"), actions.Scroll(1, 1, "down")):
        assert touch_events(action) == input_events(action)


def test_the_set_up_and_the_image_install_the_phones_applications():
    programs = {program for family in adaptive.FAMILIES for program in problem_of(family, 0).programs}
    installed = dict(re.findall(r"([\w.-]+):([\w-]+)", (ROOT / "deploy/local/setup.sh").read_text()))
    image = (ROOT / "deploy/docker/desktop.Dockerfile").read_text().split()
    assert {installed[program] for program in programs} <= set(image)


def test_the_phones_task_set_has_each_family_and_no_other():
    config = load(ROOT / "deploy/config/adaptive.toml")
    assert (config.env.desktop.width, config.env.desktop.height) == PHONE
    pages = {page["page"] for page in tomllib.loads((ROOT / "deploy/config/adaptive-tasks.toml").read_text())["pages"]}
    assert pages == set(adaptive.FAMILIES)
    assert not set(adaptive.FAMILIES) & set(families.FAMILIES)


def test_another_machine_refuses_a_phones_task():
    task = Task(environment="osworld", page="folder", seed=0, max_steps=5, split="train")
    with pytest.raises(EnvironmentFault, match="desktop"):
        OsworldBackend(Config(env=Env(osworld=Osworld(lease_url="http://127.0.0.1:9")))).session_of(task)
