"""A trainer on two nodes, each in a network namespace: ranks and launchers are killed, and no group is lost."""

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from console.launch.services.daemon import free_port
from dart_streams.config import Config
from tests.faults.network import Network, connect, network, possible
from tests.model.forkserver import POLLING, fork_own_ranks, spawning
from tests.model.test_trainer_run import Run, assert_same_weights, ended, until
from trainer import main, nodes

pytestmark = [pytest.mark.skipif(bool(possible()), reason=possible() or "possible"), pytest.mark.timeout(5400)]
STEPS = 8
CLONE_NEWNET = 0x40000000


def train_in(namespace: str, config: Config, output: Path) -> None:
    """Be `dart-streams train` in a network namespace."""
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream)
    place = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    assert ctypes.CDLL(None).setns(place, CLONE_NEWNET) == 0
    fork_own_ranks()
    nodes.RendezvousParameters = functools.partial(RendezvousParameters, keep_alive_interval=1)
    nodes.EXIT_BARRIER_S = 1.0
    os._exit(main.run(config))


@contextlib.contextmanager
def node(place: Network, config: Config, output: Path) -> Iterator[BaseProcess]:
    """A node's launcher, killed with its ranks at the end of the block."""
    process = spawning.Process(target=train_in, args=(place.name, config, output))
    with POLLING:
        process.start()
    try:
        yield process
    finally:
        ours = ranks_of(process)
        process.kill()
        ended(process)
        psutil.wait_procs(ours, timeout=120)
        assert not [rank for rank in ours if rank.is_running()], "ranks die with their launcher"


def ranks_of(launcher: BaseProcess) -> list[psutil.Process]:
    """Return the processes of a launcher's ranks, each in a session of its own."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        return [child for child in psutil.Process(launcher.pid).children() if os.getsid(child.pid) == child.pid]
    return []


def test_killed_ranks_and_nodes_of_two_lose_and_repeat_no_group(new_run: Callable[..., Run], tmp_path):
    """A rank of either node, then each node whole: first the one that only joins, then the one that listens.

    In the end one node is stopped, and one process continues.
    """
    alone = new_run(STEPS, max_train_steps=STEPS)
    assert alone.train() == 0
    with contextlib.ExitStack() as life:
        nets = [life.enter_context(network(f"dart-node-{name}")) for name in "ab"]
        address, _ = connect(*nets)
        ours = new_run(0, max_train_steps=STEPS, nodes=2, rendezvous=f"{address}:{free_port()}")
        outputs = [tmp_path / f"{name}.log" for name in "ab"]
        groups = iter([ours.maker.group(index) for index in range(STEPS)])
        pairs = [life.enter_context(contextlib.ExitStack()) for _ in nets]
        nodes = [
            pair.enter_context(node(net, ours.config, out)) for pair, net, out in zip(pairs, nets, outputs, strict=True)
        ]

        def restart(number: int) -> None:
            pairs[number].close()
            nodes[number] = pairs[number].enter_context(node(nets[number], ours.config, outputs[number]))

        def trained(count: int) -> None:
            living = functools.partial(map, BaseProcess.is_alive, nodes)
            until(lambda: len(ours.steps()) >= count or not all(living()), f"step {count}", bound_s=900)
            assert len(ours.steps()) >= count, [output.read_text()[-3000:] for output in outputs]

        disturbances = [
            lambda: until(lambda: ranks_of(nodes[1]))[0].kill(),
            lambda: until(lambda: ranks_of(nodes[0]))[0].kill(),
            lambda: restart(1),
            lambda: restart(0),
        ]
        ours.add([next(groups)])
        trained(1)
        for count, disturb in enumerate(disturbances, 2):
            ours.add([next(groups)])
            disturb()
            trained(count)
        os.kill(nodes[1].pid or 0, signal.SIGTERM)
        assert [ended(process) for process in nodes] == [0, 0], "a stop of one node ends the job on both"
    ours.add(list(groups))
    assert ours.train(nodes=1, rendezvous="") == 0, "the run continues on one"

    assert [row["group_ids"] for row in ours.trained()] == [[f"group-{index}"] for index in range(STEPS)]
    losses, expected = ([row["metrics"]["loss"] for row in run.trained()] for run in (ours, alone))
    assert losses == pytest.approx(expected, abs=1e-4)
    assert_same_weights(ours, alone, atol=1e-4)
    epochs = [version.epoch for version in ours.versions()]
    assert epochs == sorted(epochs)
    assert epochs[-1] >= 2 + len(disturbances)
