"""GPUs of a machine: nvidia-smi's lines, CUDA_VISIBLE_DEVICES, and counts that are not there."""

import os
from pathlib import Path

import pytest

from console.sizing import gpu_devices
from console.sizing.gpu_devices import Gpus, parse_devices, read_gpus, visible_gpus, wanted_gpus
from dart_streams.errors import ConfigError, UserError

LINES = "0, GPU-aaaa1111, 81559\n1, GPU-bbbb2222, 81559\n2, GPU-cccc3333, 40960\n"
DEVICES = parse_devices(LINES)


def put_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program nvidia-smi in front of PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("visible", "devices", "gib"),
    [
        pytest.param(None, ("0", "1", "2"), 40.0, id="all"),
        pytest.param("1,0", ("1", "0"), 79.6, id="order"),
        pytest.param("GPU-cccc", ("GPU-cccc",), 40.0, id="uuid"),
        pytest.param("GPU-", (), 0.0, id="no uuid"),
        pytest.param("", (), 0.0, id="none"),
        pytest.param("0,-1,1", ("0",), 79.6, id="ends at an unknown one"),
        pytest.param("MIG-dddd", ("MIG-dddd",), 0.0, id="part of a GPU"),
    ],
)
def test_visible_devices_are_those_of_cuda(visible, devices, gib):
    found = visible_gpus(DEVICES, visible)
    assert found.devices == devices
    assert found.gib == pytest.approx(gib, abs=0.05)


def test_visible_devices_without_a_gpu_are_none():
    assert visible_gpus([], "0,1") == visible_gpus([], "MIG-x") == Gpus()


def test_nvidia_smi_is_asked_for_devices_and_one_that_fails_means_none(tmp_path, monkeypatch):
    put_smi(tmp_path, monkeypatch, f"printf '{LINES}'")
    assert read_gpus({"CUDA_VISIBLE_DEVICES": "1"}).devices == ("1",)
    put_smi(tmp_path, monkeypatch, "echo NVIDIA-SMI has failed; exit 9")
    assert read_gpus({}) == Gpus()
    assert parse_devices("0, GPU-a, [N/A]\nnoise\n")[0].gib == 0.0


def test_an_nvidia_smi_that_hangs_is_named(tmp_path, monkeypatch):
    put_smi(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(gpu_devices, "QUERY_TIMEOUT_S", 0.2)
    with pytest.raises(UserError, match=r"nvidia-smi did not answer .* hardware\.gpus = 0"):
        read_gpus({})


def test_device_files_count_where_nvidia_smi_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_devices, "DEVICE_FILES", tmp_path)
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert read_gpus({}) == Gpus(("0", "2", "10"))


def test_a_count_takes_the_first_gpus_and_missing_ones_are_refused():
    there = Gpus(("4", "5", "6"), 80.0)
    assert wanted_gpus("auto", there) == there
    assert wanted_gpus(2, there) == Gpus(("4", "5"), 80.0)
    assert wanted_gpus(4, there, simulated_gib=40.0) == Gpus(("0", "1", "2", "3"), 40.0)
    with pytest.raises(ConfigError, match=r"hardware\.gpus = 4, and 3 are visible"):
        wanted_gpus(4, there)
