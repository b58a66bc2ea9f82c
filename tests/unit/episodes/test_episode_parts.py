"""The small parts around an episode: coordinates, ids, slot times, the simulated environment."""

import asyncio
import io
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dart_streams.actions import Click, Drag, Scroll, Wait
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.episodes.episode import new_trajectory_id
from dart_streams.screens import smart_resize
from workers.env.backends.simulated import SimulatedBackend, box_center
from workers.env.environment import EnvironmentFault, rescale
from workers.env.metrics import SlotTimes

side = st.integers(1, 4000)


@given(width=side, height=side, data=st.data())
def test_a_point_on_the_screen_survives_the_way_to_a_larger_image_and_back(width, height, data):
    larger = (data.draw(st.integers(width, 8000)), data.draw(st.integers(height, 8000)))
    point = Click(data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1)))
    assert rescale(rescale(point, (width, height), larger), larger, (width, height)) == point


@given(x=st.integers(-9999, 9999), y=st.integers(-9999, 9999))
def test_what_lies_outside_the_image_lands_on_the_edge_of_the_screen(x, y):
    moved = rescale(Click(x, y), (168, 224), (160, 210))
    assert isinstance(moved, Click)
    assert 0 <= moved.x < 160
    assert 0 <= moved.y < 210


def test_every_coordinate_of_an_action_is_scaled_and_nothing_else():
    assert rescale(Drag(0, 10, 20, 30), (100, 100), (200, 300)) == Drag(1, 31, 41, 91)
    assert rescale(Scroll(10, 10, "down"), (100, 100), (100, 100)) == Scroll(10, 10, "down")
    assert rescale(Wait(), (100, 100), (200, 200)) == Wait()


@given(at_ms=st.integers(0, 2**48 - 1), randomness=st.binary(min_size=10, max_size=10))
def test_a_trajectory_id_is_a_uuid_of_version_7_that_starts_with_its_time(at_ms, randomness):
    identity = uuid.UUID(new_trajectory_id(at_ms, randomness))
    assert (identity.version, identity.variant, identity.int >> 80) == (7, uuid.RFC_4122, at_ms)


def test_slot_times_add_up_to_the_moment_of_asking():
    now = [100.0]
    times = SlotTimes(2, clock=lambda: now[0])
    times.enter(0, "reset")
    now[0] += 2
    times.enter(0, "wait")
    now[0] += 3
    assert times.spent_ms() == {"idle": 5_000, "reset": 2_000, "wait": 3_000}
    assert times.busy == 1


def simulated(page: str = "box", **settings) -> tuple[SimulatedBackend, Task]:
    quick = {"reset_ms": 0, "step_ms": 0, "evaluate_ms": 0} | settings
    config = parse({"env": {"backend": "simulated", "simulated": {"call_timeout_s": 0.05, **quick}}})
    return SimulatedBackend(config), Task(environment="simulated", page=page, seed=7, max_steps=9, split="train")


async def test_the_instruction_names_the_box_in_pixels_of_the_policys_image():
    backend, task = simulated()
    environment = await backend.open(task)
    screen = await environment.reset(task)
    image = Image.open(io.BytesIO(screen.image))
    assert image.size == (screen.width, screen.height)
    policy = smart_resize(*image.size, backend.config.policy.min_pixels, backend.config.policy.max_pixels)
    x, y = (int(part) for part in screen.instruction.split("(")[1].split(")")[0].split(","))
    assert rescale(Click(x, y), policy, image.size) == Click(*box_center(task))
    assert image.getpixel(box_center(task)) != (255, 255, 255)


@pytest.mark.parametrize(("page", "wanted"), [("box", 1), ("steps-3", 3)])
async def test_the_oracle_solves_a_page_in_as_many_steps_as_it_wants(page, wanted):
    backend, task = simulated(page)
    environment = await backend.open(task)
    screen = await environment.reset(task)
    screens, steps = {screen.image}, 0
    assert await environment.evaluate() == 0.0
    async for action in environment.demonstrate(task):
        screen = await environment.step(action, f"a{steps}")
        screens.add(screen.image)
        steps += 1
    assert (steps, screen.done, await environment.evaluate()) == (wanted, True, 1.0)
    assert len(screens) == wanted + 1


async def test_a_missed_click_ends_the_episode_without_reward():
    backend, task = simulated("steps-2")
    environment = await backend.open(task)
    await environment.reset(task)
    await environment.step(Click(*box_center(task)), "a")
    assert not (await environment.step(Click(*box_center(task)), "a")).done
    x, y = box_center(task)
    assert (await environment.step(Click((x + 80) % 160, y), "b")).done
    assert await environment.evaluate() == 0.0


async def test_the_last_screen_is_left_out_where_it_is_not_wanted():
    config = parse({"env": {"backend": "simulated", "simulated": {"last_screen": False, "reset_ms": 0, "step_ms": 0}}})
    task = Task(environment="simulated", page="steps-3", seed=7, max_steps=9, split="train")
    right, (x, y) = Click(*box_center(task)), box_center(task)
    for last_action, last in [(right, True), (Click((x + 80) % 160, y), False)]:
        environment = await SimulatedBackend(config).open(task)
        assert (await environment.reset(task)).image is not None
        assert (await environment.step(right, "a")).image is not None
        assert (await environment.step(last_action, "b", last)).image is None


@pytest.mark.parametrize(("rate", "text"), [("hang_rate", "hang"), ("fault_rate", "fault")])
async def test_hangs_and_faults_end_as_environment_faults_in_time(rate, text):
    backend, task = simulated(**{rate: 1.0})
    environment = await backend.open(task)
    async with asyncio.timeout(60):
        with pytest.raises(EnvironmentFault, match=text):
            await environment.reset(task)
