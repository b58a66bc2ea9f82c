"""A CPU whose AMX is announced but not usable: a child process dies of it, once a boot."""

import os
import sys
from pathlib import Path

import pytest

from dart_streams.errors import UserError
from dart_streams.policy import cpu_features
from dart_streams.policy.cpu_features import CAPS, FILE, VARIABLE, first_usable, limit_isa, needed_cap

UNTIL = "import os, signal; os.environ.get('{variable}', '') in {caps} and os.kill(os.getpid(), signal.SIGILL)"


def dies_under(*caps: str) -> str:
    """A program that an illegal instruction ends under these caps."""
    return UNTIL.format(variable=VARIABLE, caps=caps)


@pytest.fixture(autouse=True)
def no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set before it is deleted, so that what a test sets is taken back.
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: frozenset({"amx_tile"}))


@pytest.mark.parametrize("count", range(len(CAPS)))
def test_the_highest_cap_under_which_the_child_survives_is_taken(count: int) -> None:
    assert first_usable([sys.executable, "-c", dies_under(*CAPS[:count])]) == CAPS[count]


def test_a_probe_that_dies_under_every_cap_is_an_error_no_other_failure() -> None:
    with pytest.raises(UserError, match=r"signal 4.*trainer\.dtype"):
        first_usable([sys.executable, "-c", dies_under(*CAPS)])
    assert first_usable([sys.executable, "-c", "import no_such_module"]) == ""


@pytest.mark.usefixtures("announced")
def test_the_cap_is_set_for_this_process_and_probed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "PROBE", dies_under(""))
    limit_isa("bfloat16", tmp_path / "state")
    assert os.environ[VARIABLE] == "AVX512_CORE_FP16"
    monkeypatch.setattr(cpu_features, "PROBE", dies_under(*CAPS))
    assert needed_cap(tmp_path / "state") == "AVX512_CORE_FP16"


@pytest.mark.usefixtures("announced")
def test_after_another_boot_it_is_probed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_text("another-boot AVX512_CORE")
    monkeypatch.setattr(cpu_features, "PROBE", dies_under())
    assert needed_cap(tmp_path) == ""


@pytest.mark.usefixtures("announced")
def test_float32_and_a_value_of_the_users_own_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "PROBE", dies_under(*CAPS))
    limit_isa("float32", tmp_path)
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "AVX2")
    limit_isa("bfloat16", tmp_path)
    assert os.environ[VARIABLE] == "AVX2"
    assert list(tmp_path.iterdir()) == []


def test_a_cpu_without_amx_is_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(cpu_features, "PROBE", dies_under(*CAPS))
    assert needed_cap(tmp_path) == ""
