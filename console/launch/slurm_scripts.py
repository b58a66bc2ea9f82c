"""Batch scripts of a deployment on a cluster with Slurm: ``dart-streams launch slurm``.

Environments and rollout workers are job arrays, the trainer is a job of ``trainer.nodes`` nodes, and one job has the
recorder, curator and monitor and measures the run. Kafka and Cassandra run elsewhere.
"""

import shlex
from collections.abc import Iterator

from console.launch.keeper import FINAL_CODES, RESTART_S
from console.launch.launch_plan import LaunchPlan
from console.launch.node_scripts import control_lines, refuse_loopback
from console.launch.shell import SCRIPTS, command_words, prelude_text, variables_text
from console.launch.supervisor import ProcessSpec
from console.sizing.placement import tensor_parallel

DRAIN_MARGIN_S = 60
"""Time between SIGTERM and the end of a job, beyond ``run.drain_s``."""


def slurm_scripts(plan: LaunchPlan) -> dict[str, str]:
    """Return the scripts by file name; raise ConfigError for services on loopback."""
    refuse_loopback(plan, "the jobs")
    env = array_job(plan, "env", plan.nodes[0].env, ["--nodes=1", "--ntasks=1"])
    workers = tuple(spec for node in plan.nodes for spec in node.rollout)
    gpus = [f"--gpus-per-node={tensor_parallel(plan.config)}"] if plan.config.rollout.engine == "vllm" else []
    rollout = array_job(plan, "rollout", workers, ["--nodes=1", "--ntasks=1", *gpus])
    jobs = {"env": env, "rollout": rollout, "trainer": trainer_job(plan)}
    jobs = {name: text for name, text in jobs.items() if text}
    heading = f"#!/usr/bin/env bash\n# Submits the jobs of run {plan.run.id}, written by `dart-streams launch slurm`.\n"
    values = {"folder": plan.config_file.parent, "jobs": " ".join(jobs)}
    submit = heading + variables_text(values) + SCRIPTS.joinpath("submit.sh").read_text(encoding="utf-8")
    files = {f"{name}.sbatch": text for name, text in jobs.items()}
    return {"submit.sh": submit, "control.sbatch": control_job(plan, list(jobs)), **files}


def job_name(plan: LaunchPlan, job: str) -> str:
    """Return the name of a job, by which the control job cancels it."""
    return f"{plan.run.id}-{job}"


def header_lines(plan: LaunchPlan, job: str, options: list[str]) -> list[str]:
    """Return the first lines of a batch script; the options of ``[launch]`` come last, and win."""
    launch = plan.config.launch
    more = launch.gpu_options if job in ("rollout", "trainer") else launch.cpu_options
    array = "%a-" if any(option.startswith("--array") for option in options) else ""
    output = f"--output={plan.config_file.parent}/{job}-{array}%j.log"
    # sbatch reads its lines as a shell does: quotes, and comments after #.
    named = [f"--job-name={job_name(plan, job)}", shlex.quote(output), "--open-mode=append", "--requeue"]
    lines = [f"#SBATCH {option}" for option in (*named, *options, *launch.options, *more)]
    return ["#!/usr/bin/env bash", *lines]


def control_job(plan: LaunchPlan, others: list[str]) -> str:
    """Return the job of recorder, curator and monitor, which measures the run and cancels the others at its end."""
    grace_s = round(plan.config.run.drain_s) + DRAIN_MARGIN_S
    lines = header_lines(plan, "control", ["--nodes=1", "--ntasks=1", f"--signal=B:TERM@{grace_s}"])
    lines.append(prelude_text(plan.config_file, plan.logs, plan.config.run.drain_s))
    names = ",".join(job_name(plan, job) for job in others)
    lines += [
        "# The other jobs end with this one; submit.sh goes on with the run.",
        f"trap 'stop; scancel --me --name={names}' EXIT\n",
    ]
    own = list(control_lines(plan, (), plan.nodes[0]))
    at = next(number for number, line in enumerate(own) if " store apply " in line)
    own.insert(at + 1, f"touch {shlex.quote(str(plan.config_file.parent / 'ready'))}")
    return "\n".join([*lines, *own, ""])


def array_job(plan: LaunchPlan, kind: str, specs: tuple[ProcessSpec, ...], options: list[str]) -> str:
    """Return a job array with a worker in each task; empty without workers."""
    if not specs:
        return ""
    lines = header_lines(plan, kind, [f"--array=0-{len(specs) - 1}", *options])
    words = command_words(specs[0].command[:-1], plan.config_file)
    command = f'repeat srun --ntasks=1 {words} "{kind}-$SLURM_ARRAY_TASK_ID"\n'
    return "\n".join([*lines, await_text(plan), command])


def trainer_job(plan: LaunchPlan) -> str:
    """Return the trainer's job: `train` once on each node, which meet at the first; empty without a trainer."""
    if not plan.nodes[0].trainer:
        return ""
    nodes, ranks = len(plan.nodes), plan.config.trainer.processes
    options = [f"--nodes={nodes}", "--ntasks-per-node=1", f"--gpus-per-node={ranks}"]
    lines = [*header_lines(plan, "trainer", options), await_text(plan), *rendezvous_lines(plan)]
    words = command_words(plan.nodes[0].trainer[0].command, plan.config_file)
    return "\n".join([*lines, f"repeat srun --ntasks-per-node=1 --kill-on-bad-exit=1 {words}\n"])


def rendezvous_lines(plan: LaunchPlan) -> Iterator[str]:
    """Yield the lines that let the nodes meet at the job's first one, on the port that the file names."""
    if len(plan.nodes) == 1:
        return
    _, _, port = plan.config.trainer.rendezvous.rpartition(":")
    folder = shlex.quote(str(plan.config_file.parent))
    yield 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield f"own={folder}/trainer-$SLURM_JOB_ID.toml"
    yield f'sed "s|^rendezvous = .*|rendezvous = \\"$head:{port}\\"|" "$config" >"$own"'
    yield "config=$own"


def await_text(plan: LaunchPlan) -> str:
    """Return the lines that wait for topics and tables."""
    values = {
        "config": plan.config_file,
        "ready": plan.config_file.parent / "ready",
        "final": " ".join(map(str, FINAL_CODES)),
        "restart_s": f"{RESTART_S:g}",
    }
    return variables_text(values) + SCRIPTS.joinpath("job.sh").read_text(encoding="utf-8")
