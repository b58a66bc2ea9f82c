"""The deployment of long episodes, and the comparison of windows on it."""

from benchmarks.learning import variants
from dart_streams.config import load, tasks
from dart_streams.episodes.prompts import window_after
from tests.sources import ROOT

FILE = ROOT / "deploy/config/long.toml"


def test_its_pages_are_long_and_answers_are_dropped_with_screenshots():
    config = load(FILE)
    task_set = tasks.load(FILE.parent / config.tasks.file)
    assert len(task_set.pages) >= 3
    for page in task_set.pages:
        assert config.env.miniwob.own_page(page.page)
        assert 8 <= page.max_steps <= 20
    policy = load(FILE).policy
    assert policy.min_images
    assert all(
        window.first_text == 1 + window.first_image
        for window in (window_after(steps, policy) for steps in range(1, 30))
    )


def test_the_windows_that_are_compared_have_the_same_mean():
    found = variants.read(ROOT / "benchmarks/learning/long.toml")
    windows = {name: [window_after(steps, config.policy) for steps in range(5, 25)] for name, config in found.items()}
    sizes = {
        name: [steps - window.first_image for steps, window in enumerate(shown, 5)] for name, shown in windows.items()
    }
    assert sizes["base"] == [5] * 20
    assert sum(sizes["blocks"]) == 5 * 20
    assert {window.first_image for window in windows["blocks"]} == {
        window.first_text - 1 for window in windows["blocks"]
    }
    assert found["base"].env.miniwob.pages_folder == load(FILE).env.miniwob.pages_folder
