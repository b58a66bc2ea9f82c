"""One shell script a node that starts its processes with their GPUs: ``dart-streams launch local``."""

import shlex
from collections.abc import Iterable, Iterator

from console.launch.launch_plan import LaunchPlan
from console.launch.processes import ProcessSet
from console.launch.shell import keep_lines, prelude_text
from console.launch.supervisor import ProcessSpec
from dart_streams.errors import ConfigError


def node_scripts(plan: LaunchPlan) -> dict[str, str]:
    """Return the scripts by file name; raise ConfigError for services that another node cannot reach."""
    if len(plan.nodes) > 1:
        refuse_loopback(plan, "the other nodes")
    return {f"node-{number}.sh": node_script(plan, number) for number in range(len(plan.nodes))}


def refuse_loopback(plan: LaunchPlan, others: str) -> None:
    """Raise ConfigError for services on the loopback of one machine."""
    keys = {"kafka": "bus.servers", "cassandra": "store.hosts"}
    for name in plan.local_services:
        raise ConfigError(f"{keys[name]} is on loopback, where {others} do not reach it: name the host of the service")


def node_script(plan: LaunchPlan, node: int) -> str:
    """Return a node's script: the first one measures the run to its end, others keep their processes until a signal."""
    lines = [
        "#!/usr/bin/env bash",
        f"# Node {node} of {len(plan.nodes)} of run {plan.run.id}, written by `dart-streams launch local`.",
        "# It keeps the node's processes alive, with their GPUs, until the run is over or SIGTERM.",
        prelude_text(plan.config_file, plan.logs, plan.config.run.drain_s),
    ]
    own = plan.nodes[node]
    if node:
        lines += [*keep_all([*own.rollout, *own.trainer], plan), 'await "${workers[@]}"']
    else:
        lines += control_lines(plan, [*own.rollout, *own.env, *own.trainer], own)
    return "\n".join(lines) + "\n"


def control_lines(plan: LaunchPlan, beside: Iterable[ProcessSpec], own: ProcessSet) -> Iterator[str]:
    """Yield the life of a run: topics and tables, processes, both evaluations, the curator between them."""
    program = shlex.quote(str(plan.programs.streams))
    if plan.local_services:
        yield f'{program} up --config "$config"'
    yield f'{program} topics apply --config "$config"'
    yield f'{program} store apply --config "$config"'
    yield from keep_all([*own.recorder, *own.tracker, *own.monitor, *beside], plan)
    yield f'measure {program} run "$config" --attached --before'
    yield from keep_all(own.curator, plan)
    yield f'measure {program} run "$config" --attached'


def keep_all(specs: Iterable[ProcessSpec], plan: LaunchPlan) -> Iterator[str]:
    """Yield the lines that keep processes alive."""
    for spec in specs:
        yield from keep_lines(spec, plan.config_file)
