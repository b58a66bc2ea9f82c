"""The wheel has all that the images' processes need: every verb starts where nothing of the checkout is."""

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.installed_wheel import BUILT_FROM, build_wheels, failed_verbs, install_wheels
from tests.sources import PRODUCT, ROOT

NOT_FOR_USERS = {"README.md", "jsconfig.json"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_wheels(tmp_path_factory.mktemp("wheel"))


def test_the_wheels_have_every_file_of_the_packages(wheels: list[Path]):
    ours = {
        path.relative_to((ROOT / name).parent).as_posix()
        for name in PRODUCT
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.name not in NOT_FOR_USERS and "__pycache__" not in path.parts
    }
    assert ours - {name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()} == set()


def test_the_images_build_it_from_the_same_files():
    for image in ("streams", "model"):
        stage = (ROOT / f"deploy/docker/{image}.Dockerfile").read_text().split("AS wheel\n")[1].split("\nFROM")[0]
        copied = [name for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE) for name in line.split()[:-1]]
        assert copied == list(BUILT_FROM)
    assert {f"!{name}" for name in BUILT_FROM} <= set((ROOT / ".dockerignore").read_text().splitlines())


@pytest.fixture(scope="module")
def python(wheels: list[Path]) -> Path:
    return install_wheels(wheels, wheels[0].parent / "venv")


def test_the_checkout_comes_before_the_wheel_whose_entry_points_stay(python: Path, tmp_path: Path):
    """deploy/docker/dev.yml mounts it into each container of ours."""
    services = yaml.safe_load((ROOT / "deploy/docker/dev.yml").read_text())["services"]
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {*services, "gate"} == {name for name, one in stack.items() if one["image"].startswith("dart-streams/")}
    for one in services.values():
        mounted = one["environment"]["PYTHONPATH"]
        assert one["volumes"] == [f"./{name}:{mounted}/{Path(name).name}:ro" for name in PRODUCT]
        assert all((ROOT / watched["path"]).is_dir() for watched in one.get("develop", {}).get("watch", ()))
    for name in PRODUCT:
        (tmp_path / Path(name).name).symlink_to(ROOT / name)
    asked = "import dart_streams; from dart_streams.config.recipes import find_recipe, recipe_folder as folder; "
    asked += "print(dart_streams.__file__, find_recipe('dart'), folder('dart'))"
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([python, "-P", "-c", asked], capture_output=True, text=True, check=True, env=environment)
    places = [f"{tmp_path}/dart_streams/__init__.py", "dart_recipes.dart", f"{tmp_path}/dart_recipes/dart"]
    assert done.stdout.split() == places


def test_every_verb_starts_from_the_wheels_alone(python: Path, tmp_path: Path):
    assert failed_verbs(python, tmp_path) == {}
