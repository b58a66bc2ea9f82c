"""A kustomize overlay of the size that a plan has. Pure.

It is laid over manifests that have KEDA and Strimzi, as ``deploy/k8s/overlays/gpu`` does: numbers of workers are the
bounds of their scaling. Requests, replicas and partitions are figures of :mod:`dart_streams.console.sizing.capacity`.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dart_streams.config.files import parse
from dart_streams.console.sizing.capacity import Sizing
from dart_streams.curation.order_tracker import ORDERS_PER_SLOT

Tables = dict[str, Any]
CPU_STEP_M = 50
"""Processor requests are multiples of this, in thousandths of a core."""
DISK_SHARE = 0.7
"""Share of a broker's disk that its records may fill."""
TARGETS = {
    "env-scaling.yaml": {"kind": "ScaledObject", "name": "env"},
    "rollout-scaling.yaml": {"kind": "ScaledObject", "name": "rollout"},
    "kafka.yaml": {"kind": "KafkaNodePool", "name": "nodes"},
}
"""The resource that each file of a JSON patch changes. The other patches are merged, and name theirs."""
GPUS = {"rollout": "gpus_a_worker", "trainer": "trainer_gpus"}
"""The constant with the GPUs of a pod, by role."""


def plan_values(sizing: Sizing) -> dict[str, float]:
    """Return the plan's figures and constants by name."""
    constants = {constant.name: constant.value for constant in sizing.constants}
    return constants | {figure.name: figure.needed for figure in sizing.figures}


def size_tables(tables: Mapping[str, Any], sizing: Sizing, staleness: int) -> Tables:
    """Return a deployment's tables with the numbers of a plan; raise ConfigError if they do not go together."""
    values = {name: math.ceil(value) for name, value in plan_values(sizing).items()}
    sized: dict[str, Tables] = {
        "bus": {"topics": {"partitions": values["partitions"], "replicas": values["copies"]}},
        "env": {"workers": values["env_workers"], "slots": math.ceil(sizing.envs / values["env_workers"])},
        "rollout": {
            "workers": values["rollout_workers"],
            "max_in_flight": values["places"],
            "roll_width": values["switching"],
            "vllm": {"tensor_parallel": values["gpus_a_worker"]},
        },
        "trainer": {"groups_per_step": values["batch"], "processes": values["trainer_gpus"]},
        "curation": {"max_staleness": staleness},
    }
    changed = merge_tables(tables, sized)
    parse(changed, "the overlay's dart.toml")
    return changed


def merge_tables(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> Tables:
    """Return tables with the keys of ``changes``, nested ones too."""
    merged = dict(tables)
    for key, value in changes.items():
        merged[key] = merge_tables(merged.get(key, {}), value) if isinstance(value, Mapping) else value
    return merged


def overlay_files(sizing: Sizing, tables: Tables, base: str) -> dict[str, str]:
    """Return the texts of an overlay's files but ``dart.toml``, by name; ``base`` is the folder below it."""
    values, config = plan_values(sizing), parse(tables)
    env_lag, rollout_lag = ORDERS_PER_SLOT * config.env.slots, config.rollout.max_in_flight
    intro = "".join(f"# {line}\n" for line in summarize(sizing))
    return {
        "kustomization.yaml": intro + yaml_text(list_patches(base)),
        "workers.yaml": "---\n".join(map(yaml_text, patch_workers(values))),
        "env-scaling.yaml": yaml_text(scale_workers(values["env_workers"], env_lag)),
        "rollout-scaling.yaml": yaml_text(scale_workers(values["rollout_workers"], rollout_lag)),
        "kafka.yaml": yaml_text(size_brokers(values)),
    }


def yaml_text(document: Any) -> str:
    """Return a document as YAML."""
    return msgspec.yaml.encode(document).decode()


def summarize(sizing: Sizing) -> list[str]:
    """Return lines on the size, and on what the overlay does not make."""
    values = plan_values(sizing)
    trainer, node = values["train_gpus"], values["trainer_gpus"]
    lines = [
        f"Size for {sizing.envs:,} environments, of `dart-streams plan --envs {sizing.envs} --format kustomize`.",
        f"Cassandra is not made here: {values['nodes']:.0f} nodes of {values['store_cores']:.0f} cores.",
        f"Screenshots: {values['screenshots_written'] * 1e6:,.0f} bytes/s, {values['screenshots_gb_a_day']:,.0f} GB a "
        f"day on its disks, {values['screenshots_gb_a_run']:,.0f} GB a run of {values['run_hours']:.0f} h.",
    ]
    if trainer > node:
        lines.append(
            f"The plan has {trainer:.0f} GPUs for the trainer. The pod has {node:.0f}, so training sets the pace."
        )
    return lines


def list_patches(base: str) -> Tables:
    """Return the kustomization over the folder ``base``: its configuration and patches."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "dart-streams",
        "resources": [base],
        "configMapGenerator": [{"name": "dart-streams", "behavior": "replace", "files": ["dart.toml"]}],
        "patches": [
            {"path": "workers.yaml"},
            *({"path": name, "target": target} for name, target in TARGETS.items()),
        ],
    }


def patch_workload(kind: str, name: str, resources: Tables, replicas: int | None = None) -> Tables:
    """Return a patch of a workload's resources, and of its replicas where nothing scales it."""
    spec: Tables = {"template": {"spec": {"containers": [{"name": "dart", "resources": resources}]}}}
    if replicas is not None:
        spec = {"replicas": replicas} | spec
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def request_cpu(cores: float) -> Tables:
    """Return the processor request for ``cores``, rounded up to :data:`CPU_STEP_M`."""
    return {"cpu": f"{max(1, math.ceil(round(cores * 1000 / CPU_STEP_M, 6))) * CPU_STEP_M}m"}


def patch_workers(values: Mapping[str, float]) -> list[Tables]:
    """Return the patches of env and rollout workers, recorders, curator and trainer."""
    recorder = values["steps_per_s"] * values["recorder_ms"] / 1000 / values["busy"] / values["recorders"]
    curator = values["curator_cores"] / values["busy"]
    memory_mib = math.ceil(values["env_memory"])
    env = {
        "requests": request_cpu(values["env_cores"]) | {"memory": f"{memory_mib}Mi"},
        "limits": {"memory": f"{2 * memory_mib}Mi"},
    }
    gpus = {role: {"limits": {"nvidia.com/gpu": math.ceil(values[name])}} for role, name in GPUS.items()}
    return [
        patch_workload("StatefulSet", "env", env),
        patch_workload("Deployment", "rollout", gpus["rollout"]),
        patch_workload("Deployment", "recorder", {"requests": request_cpu(recorder)}, math.ceil(values["recorders"])),
        patch_workload("Deployment", "curator", {"requests": request_cpu(curator)}),
        patch_workload("Deployment", "trainer", gpus["trainer"]),
    ]


def scale_workers(most: float, lag: int) -> list[Tables]:
    """Return the changes of a scaled workload: as many replicas as the plan, another for each ``lag`` records."""
    return [
        replace_field("spec/maxReplicaCount", math.ceil(most)),
        replace_field("spec/triggers/0/metadata/lagThreshold", str(lag)),
    ]


def size_brokers(values: Mapping[str, float]) -> list[Tables]:
    """Return the changes of Kafka's nodes: their number, cores, and disks for the retention."""
    count = math.ceil(values["brokers"])
    size = math.ceil(values["log_gb"] / count / DISK_SHARE)
    return [
        replace_field("spec/replicas", count),
        replace_field("spec/storage/volumes/0/size", f"{size}G"),
        replace_field("spec/resources/requests/cpu", f"{values['broker_cores']:g}"),
    ]


def replace_field(path: str, value: Any) -> Tables:
    """Return an operation of a JSON patch (RFC 6902)."""
    return {"op": "replace", "path": f"/{path}", "value": value}
