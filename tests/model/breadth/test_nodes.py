"""Launchers of two nodes on this machine, with small programs as their ranks: who starts again, who ends, and why."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig

from console.launch.services.daemon import free_port
from dart_streams.config import parse
from dart_streams.errors import UserError
from tests.model.forkserver import POLLING, run_ranks, spawning
from tests.model.test_trainer_run import ended, until
from trainer import equal_nodes, main, nodes
from trainer.ranks import RanksUnreachable, join_job

STARTED = """
import os, pathlib, sys, time
node, folder = os.environ["GROUP_RANK"], pathlib.Path(sys.argv[1])
starts = len(list(folder.glob(f"{node}-*")))
(folder / f"{node}-{starts}").symlink_to(f"/proc/{os.getpid()}")
first, other = folder / "0-0", folder / "1-0"
"""
"""Each start leaves a link, which leads nowhere once the launcher has noted that the rank has ended."""
FAILS_ONCE = f"""{STARTED}
while not other.is_symlink(): time.sleep(0.01)
if starts == 0: sys.exit(1) if node == '0' else time.sleep(600)"""
USER_ERROR = f"""{STARTED}
while node == '1' and (not first.is_symlink() or first.exists()): time.sleep(0.01)
sys.exit(2) if node == '0' else sys.exit(1)"""


def job_at(endpoint: str, count: int = 2) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=count, max_nodes=count, nproc_per_node=1, rdzv_endpoint=endpoint, run_id="test", max_restarts=2
    )


def launch(endpoint: str, program: str, folder: Path, result: Path) -> None:
    """Be a launcher; write how it ended."""
    said, nodes.LAST_WORD_S, nodes.EXIT_BARRIER_S = "0", 15.0, 120.0  # for a machine that stands still meanwhile
    try:
        nodes.run_node(job_at(endpoint), "-S", "-c", program, str(folder))
    except ChildFailedError as error:
        said = f"rank: {error.get_first_failure()[1].exitcode}"
    except UserError as error:
        said = f"{type(error).__name__}: {error}"
    result.write_text(said)


def outcomes(program: str, folder: Path) -> list[str]:
    """Return how two launchers ended."""
    endpoint = f"localhost:{free_port()}"
    results = [folder / f"{name}.txt" for name in "ab"]
    launchers = [spawning.Process(target=launch, args=(endpoint, program, folder, result)) for result in results]
    for launcher in launchers:
        launcher.start()
    try:
        assert [ended(launcher) for launcher in launchers] == [0, 0]
    finally:
        for launcher in launchers:
            launcher.kill()
    return sorted(result.read_text() for result in results)


def test_a_failed_rank_starts_again_with_those_of_the_other_node(tmp_path):
    assert outcomes(FAILS_ONCE, tmp_path) == ["0", "0"]
    assert sorted(file.name for file in tmp_path.glob("[01]-*")) == ["0-0", "0-1", "1-0", "1-1"]


def test_an_error_for_a_person_ends_the_job_on_both_nodes(tmp_path):
    """The other node's rank fails too, as of a connection that was closed."""
    first, second = outcomes(USER_ERROR, tmp_path)
    assert first == "JobEnded: another node ended the job: its `dart-streams train` says why"
    assert second == "rank: 2"
    assert [file.name for file in tmp_path.glob("0-*")] == ["0-0"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nodes, "RENDEZVOUS_S", 2)
    for variable in nodes.INTERFACES:
        monkeypatch.setenv(variable, "lo")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    yield


@pytest.mark.usefixtures("soon")
def test_a_node_alone_names_what_to_check(tmp_path):
    with pytest.raises(
        nodes.NodesUnreachable, match=r"fewer than trainer\.nodes = 2 nodes met at .*same configuration"
    ):
        nodes.run_node(job_at(f"localhost:{free_port()}"), "-S", "-c", STARTED, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_a_rendezvous_that_is_no_node_is_named(host, monkeypatch):
    monkeypatch.setattr(nodes, "STORE_TIMEOUT_S", 1)
    said = rf"trainer\.rendezvous = {host}:29400 can't be reached .* no firewall closes the port"
    with pytest.raises(nodes.NodesUnreachable, match=said):
        nodes.run_node(job_at(f"{host}:29400"), "-S", "-c", STARTED)


@pytest.mark.parametrize("host", ["1.1.1.1", "2606:4700:4700::1111", "of-two-addresses"])
def test_a_rendezvous_on_a_public_address_is_refused(host, monkeypatch):
    if host == "of-two-addresses":
        found = [(socket.AF_INET, 2, 17, "", (address, 29400)) for address in ("10.0.0.1", "1.1.1.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(UserError, match=r"a public address, .* in a private network or tunnel"):
        nodes.find_place(host, 29400)


def wait_for_nodes(config_table, state_dir):
    config = parse({"trainer": config_table, "run": {"state_dir": state_dir}})
    os._exit(main.run_torchrun(config))


def test_sigterm_ends_a_node_that_waits_for_the_others(tmp_path):
    port = free_port()
    table = {"nodes": 2, "rendezvous": f"localhost:{port}"}
    launcher = spawning.Process(target=wait_for_nodes, args=(table, str(tmp_path)))
    with POLLING:
        launcher.start()

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("localhost", port)) == 0

    until(listens, "the rendezvous")
    os.kill(launcher.pid or 0, signal.SIGTERM)
    assert ended(launcher) == 0
    assert not list(tmp_path.rglob("trainer*.json"))


def connect_by(job, interface, result):
    os.environ.update(job, GLOO_SOCKET_IFNAME=interface)
    try:
        with join_job():
            pass
    except RanksUnreachable as error:
        result.with_suffix(f".{job['RANK']}").write_text(str(error))


def test_ranks_that_can_not_connect_name_the_interface(tmp_path):
    run_ranks(2, connect_by, "none0", tmp_path / "said", limit_s=400)
    for rank in range(2):
        said = (tmp_path / f"said.{rank}").read_text()
        assert f"rank {rank} can't connect to the other ranks" in said
        assert "(none0; GLOO_SOCKET_IFNAME sets it)" in said


def compare(job, folder, tables, result):
    os.environ.update(job)
    rank = int(job["RANK"])
    with join_job() as ranks:
        try:
            config = parse(tables[rank])
            ranks.local = 1
            shared = folder / ("own" if "tasks" in tables[rank] else "")
            equal_nodes.refuse_unequal(config, ranks, shared, folder / config.policy.path)
            said = ""
        except UserError as error:
            said = str(error)
    result.with_suffix(f".{rank}").write_text(said)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"trainer": {"learning_rate": 1e-5}}, r"different configurations.*rank 1 on .* \(trainer.learning_rate\)"),
        ({"tasks": {"file": "other"}}, r"is not the same folder for rank 0 and rank 1 on .* all nodes must share it"),
        ({"recipe": ["mobilerl"]}, r"rank 1 .*, recipes\.mobilerl\."),
        ({"curation": {"dispatch": {"seed": 3}}}, r"\(curation.dispatch.seed\)"),
        ({"feedback": {"recent": 3}}, r"\(feedback.recent\)"),
        ({"policy": {"path": "copy"}, "bus": {"servers": "10.0.0.1:9092"}, "telemetry": {"stall_s": 3.0}}, r"^$"),
        ({"policy": {"path": "other"}}, r"\(policy.path: model.safetensors\)"),
    ],
)
def test_nodes_must_have_one_configuration_and_one_folder(tmp_path, other, said):
    for name, content in {"": b"model", "copy": b"model", "other": b"another"}.items():
        (tmp_path / "shared" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "shared" / name / "model.safetensors").write_bytes(content)
    run_ranks(2, compare, tmp_path / "shared", [{}, other], tmp_path / "said", limit_s=400)
    for rank in range(2):
        assert re.search(said, (tmp_path / f"said.{rank}").read_text())
    assert not list((tmp_path / "shared").glob(".shared-*"))
