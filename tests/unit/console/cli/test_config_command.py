import json
import shutil
import tomllib

import pytest

from console.cli.options import read_config
from dart_streams.config import load, parse
from dart_streams.errors import ConfigError
from tests.command_line import invoke
from tests.sources import ROOT

DEMO = ROOT / "deploy/config/demo.toml"


@pytest.fixture
def file(tmp_path):
    shutil.copy(ROOT / "deploy/config/tasks.toml", tmp_path / "tasks.toml")
    return tmp_path / "c.toml"


def test_the_resolved_file_reads_as_the_same_configuration(file):
    shown = tomllib.loads(invoke("config", "show", DEMO).stdout)
    assert shown["trainer"]["groups_per_step"] == 3
    assert shown["trainer"]["clip_high"] == 0.28
    assert parse(shown) == load(DEMO)
    assert json.loads(invoke("config", "show", DEMO, "--json").stdout) == shown
    with_recipe = tomllib.loads(invoke("config", "show", DEMO, "--recipe", "mobilerl").stdout)
    assert (with_recipe["recipe"], shown["recipe"]) == (["mobilerl"], ["dart"])


def test_settings_are_compared_with_the_paper_and_the_release(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = {row["key"]: row for row in json.loads(invoke("config", "differences", DEMO, "--json").stdout)}
    base, imitation = rows["curation.budget.base"], rows["trainer.imitate.trajectories"]
    assert (base["paper"], base["release"], base["run"], base["differs"]) == (8, 8, 4, True)
    assert (imitation["paper"], imitation["run"], imitation["differs"]) == (None, 16, True)
    shown = invoke("config", "differences", DEMO, "--recipe", "dart")
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines()]
    assert ["curation.budget.base", "8", "8", "8"] in table
    assert ["trainer.imitate.trajectories", "not stated", "not stated", "0"] in table
    assert ["trainer.learning_rate", "1e-6", "1e-7 and 1e-6", "0.0003 *"] in table
    assert "third-party notes" in shown.stderr
    assert "trainer.learning_rate: 1e-6 is for 7 billion parameters" in shown.stderr
    line = invoke("run", DEMO, "--recipe", "dart", "--dry-run").stderr
    assert "recipe dart: 3 settings differ from the paper's: trainer.learning_rate 0.0003 (1e-6)" in line


def test_the_difference_has_only_what_is_not_the_default(file):
    file.write_text(
        '[env]\nslots = 16\nworkers = 2\n[env.miniwob]\nisolation = "problem"\n[trainer]\nmax_train_steps = 3\n'
    )
    assert tomllib.loads(invoke("config", "show", file, "--diff").stdout) == {
        "env": {"workers": 2, "miniwob": {"isolation": "problem"}},
        "trainer": {"max_train_steps": 3},
    }


def test_every_error_of_every_file_is_reported_at_once(file, tmp_path):
    file.write_text(
        '[env]\nslot = 3\nworkers = "many"\n[trainer]\nminibatches = 0\ndual_clip = { factor = 0.5 }\n'
        '[bus.tls]\nca_file = "x"\n[tasks]\nfile = "none.toml"\n'
    )
    done = invoke("config", "check", file, DEMO, tmp_path / "lost.toml")
    assert done.exception.exit_code == 2
    assert done.stdout.splitlines() == [
        f"{file}: unknown key 'env.slot': did you mean 'slots'?",
        f"{file}: env.workers: Expected `int`, got `str`",
        f"{file}: trainer.minibatches: Expected `int` >= 1",
        f"{file}: bus.tls: files are given, but TLS is off: set enabled = true here",
        f"{file}: no task set {tmp_path / 'none.toml'}: set tasks.file, relative to the configuration file",
        f"no configuration file {tmp_path / 'lost.toml'}",
    ]
    assert f"{DEMO}: ok" in done.stderr
    file.write_text("[env]\nslot = 3\nworkers = 'many'\n")
    with pytest.raises(Exception, match=r"c\.toml:\n  unknown key 'env\.slot'.*\n  env\.workers: Expected"):
        load(file)


def test_what_goes_wrong_between_keys_is_reported_when_the_keys_are_right(file):
    file.write_text(
        '[trainer.dual_clip]\nfactor = 0.5\n[curation.dispatch]\nmode = "coupled"\n[tasks]\nfile = "tasks.toml"\n'
    )
    done = invoke("config", "check", file)
    assert [line.partition(": ")[2][:20] for line in done.stdout.splitlines()] == ["trainer: dual_clip.f"]


def test_errors_of_the_task_file_are_reported_too(file):
    file.write_text("[env]\nslots = 0\n")
    tasks = file.with_name("tasks.toml")
    tasks.write_text(tasks.read_text().replace("max_steps = 1\n", "max_steps = 'one'\n", 1))
    done = invoke("config", "check", file)
    assert done.exception.exit_code == 2
    slots, pages = done.stdout.splitlines()
    assert slots == f"{file}: env.slots: Expected `int` >= 1"
    assert "pages[0].max_steps: Expected `int`, got `str`" in pages


def test_files_without_errors_are_ok_and_exit_with_0(file):
    file.write_text("")
    shipped = sorted((ROOT / "deploy/config").rglob("*.toml"))
    done = invoke("config", "check", file, *shipped)
    assert (done.exit_code, done.stdout) == (0, "")


def test_an_unknown_backend_and_a_missing_model_folder_are_errors(file, tmp_path):
    file.write_text(f'[env]\nbackend = "minwob"\n[policy]\npath = "{tmp_path / "lost"}"\n')
    done = invoke("config", "check", file)
    assert done.exception.exit_code == 2
    backend, model = done.stdout.splitlines()
    assert backend.startswith(f"{file}: env.backend: no environment 'minwob'; known are ")
    assert model.startswith(f"{file}: policy.path: {tmp_path / 'lost'} is no Hugging Face model directory")


def test_pages_that_no_folder_has_are_errors(file, tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/shop.html").write_text("")
    page = 'environment = "mine"\nmax_steps = 2\ntrain_seeds = [0, 2]\nheldout_seeds = [8, 9]\n'
    names = ("shop", "click-test", "chase-circle", "gone")
    file.with_name("tasks.toml").write_text("".join(f'[[pages]]\npage = "{name}"\n{page}' for name in names))
    file.write_text('[tasks]\nfile = "tasks.toml"\n[env.miniwob]\npages_folder = "pages"\n')
    done = invoke("config", "check", file)
    assert done.exception.exit_code == 2
    chased, gone = done.stdout.splitlines()
    assert "'chase-circle' is not determined by its seed" in chased
    assert f"'gone' does not exist, and {tmp_path / 'pages'} has no gone.html" in gone


def test_the_environment_names_the_file_of_commands_that_are_given_none(tmp_path, monkeypatch):
    file = tmp_path / "own.toml"
    file.write_text("[env]\nslots = 3\n")
    monkeypatch.setenv("DART_CONFIG", str(file))
    assert read_config(None).env.slots == 3
    with pytest.raises(ConfigError, match="no configuration file nowhere"):
        monkeypatch.setenv("DART_CONFIG", "nowhere.toml")
        read_config(None)
