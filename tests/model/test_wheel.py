"""Every verb starts from the wheel with the packages of the model side, as in its image."""

from pathlib import Path

from tests.installed_wheel import build_wheels, failed_verbs, install_wheels


def test_every_verb_starts_from_the_wheel_alone(tmp_path: Path):
    assert failed_verbs(install_wheels(build_wheels(tmp_path), tmp_path / "venv"), tmp_path) == {}
