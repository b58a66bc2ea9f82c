"""The checks of ``dart-streams doctor``."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from console.launch.processes import find_programs
from console.launch.services.daemon import describe, in_use, local_address, owner_of
from console.launch.services.jars import SERVICES
from console.sizing import model_fit
from dart_streams.bus import readiness
from dart_streams.config import Config, tasks
from dart_streams.config.backends import BUILT_IN, entry_point_text, find_backend
from dart_streams.connection.protocol_probes import Probe, speaks_cql, speaks_kafka
from dart_streams.deadline import Deadline
from dart_streams.disk_room import FEW_FILES, room_at
from dart_streams.errors import ConfigError, UserError
from dart_streams.java import SHARED_JARS, find_java, jar_folder
from dart_streams.policy import cpu_features, hub_models
from dart_streams.policy.model_folder import missing_files
from dart_streams.store import sessions
from workers.env.foreign_process import confinement_gap

GIB = 2**30
CONNECT_S = 5.0
BROWSERS = ("chromium-headless-shell", "/usr/lib/chromium/chromium-headless-shell")


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check, with advice unless it is ``ok``."""

    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def check_python(_: Config) -> Finding:
    """Check for an optimized interpreter; another one starts vLLM in twice the time."""
    found = f"{platform.python_version()} ({sys.base_prefix})"
    # Debian optimizes its own without saying so in the arguments.
    if sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return Finding("Python", "ok", found)
    advice = "this interpreter was built without optimization; `make setup` takes the distribution's"
    return Finding("Python", "warn", found, advice)


def check_environments(_: Config) -> Finding:
    """Check both virtual environments: one with Faust, one with vLLM."""
    missing = [
        f".venv/{name}"
        for name, library in (("streams", "faust"), ("model", "vllm"))
        if not list(Path(sys.prefix).parent.glob(f"{name}/lib/python*/site-packages/{library}"))
    ]
    if missing:
        return Finding("environments", "fail", f"not complete: {', '.join(missing)}", "make setup, in the repository")
    return Finding("environments", "ok", ".venv/streams, .venv/model")


def check_java(config: Config) -> Finding:
    """Check the Java of the local services."""
    try:
        return Finding("Java", "ok", str(find_java()))
    except UserError as error:
        return Finding("Java", service_severity(config), "no Java 17", str(error))


def check_jars(config: Config) -> Finding:
    """Check the jars of the local services, or the Maven that fetches them."""
    try:
        missing = [service for service in SERVICES if not jar_folder(service, SHARED_JARS).is_dir()]
    except UserError as error:
        return Finding("jars", service_severity(config), "no recipe", str(error))
    if not missing:
        return Finding("jars", "ok", str(SHARED_JARS))
    if shutil.which("mvn"):
        return Finding("jars", "warn", f"not fetched: {', '.join(missing)}", "`dart-streams up` fetches them")
    advice = "apt-get install maven (as root), then `dart-streams up`"
    return Finding("jars", service_severity(config), "no jars, and no Maven to fetch them", advice)


def service_severity(config: Config) -> Literal["warn", "fail"]:
    """Return the status of a missing requirement of local services, which fails only if they are used."""
    return "fail" if is_local(config.bus.servers) else "warn"


def is_local(address: str) -> bool:
    """Return whether ``dart-streams up`` would start a service at this address."""
    try:
        local_address(address, "")
    except UserError:
        return False
    return True


def check_broker(config: Config) -> Finding:
    """Check the configured broker."""
    bus = msgspec.structs.replace(config.bus, wait_s=CONNECT_S)
    if how := [*(["TLS"] if bus.tls.enabled else []), *([bus.login.mechanism] if bus.login.user else [])]:
        found = f"Kafka at {bus.servers} accepts the client ({', '.join(how)})"
    else:
        finding = reach("broker", config.bus.servers.split(","), speaks_kafka, "Kafka", "bus.servers")
        if finding.status != "ok":
            return finding
        found = finding.found
    return authenticate("broker", found, lambda: readiness.await_broker(bus, Deadline(CONNECT_S)))


def check_database(config: Config) -> Finding:
    """Check the configured database."""
    store = msgspec.structs.replace(config.store, wait_s=CONNECT_S)
    if how := [*(["TLS"] if store.tls.enabled else []), *(["password"] if store.login.user else [])]:
        found = f"Cassandra at {sessions.place_of(store)} accepts the client ({', '.join(how)})"
        return authenticate("database", found, lambda: sessions.check(store))
    servers = [f"{host}:{config.store.port}" for host in config.store.hosts]
    return reach("database", servers, speaks_cql, "Cassandra", "store.hosts and store.port")


def authenticate(check: str, found: str, connect: Callable[[], None]) -> Finding:
    """Check that a service accepts the client's certificate and login, and that its own addresses are reached."""
    try:
        connect()
    except UserError as error:
        return Finding(check, "fail", "no client can use it", str(error))
    return Finding(check, "ok", found)


def reach(check: str, servers: list[str], probe: Probe, title: str, setting: str) -> Finding:
    """Check that all servers answer in their protocol; clients need one of them."""
    where = ", ".join(servers)
    places = [(server, *server.strip().rpartition(":")[::2]) for server in servers]
    away = [server for server, host, port in places if not (port.isdecimal() and probe(host, int(port), 2.0))]
    if not away:
        return Finding(check, "ok", f"{title} answers at {where}")
    if len(away) < len(servers):
        found = f"{title} answers at {len(servers) - len(away)} of {len(servers)} servers, not at {', '.join(away)}"
        return Finding(check, "warn", found, f"start it, or take it out of {setting}")
    if not is_local(servers[0]):
        return Finding(check, "fail", f"no {title} at {where}", f"start it, or set {setting}")
    host, port_number = local_address(servers[0], setting)
    if in_use(host, port_number):
        found = f"{where} is taken by {describe(owner_of(port_number))}, which is no {title} that answers"
        advice = f"stop that program, or set another port in {setting}"
        return Finding(check, "fail", found, advice)
    return Finding(check, "warn", f"no {title} at {where}", "dart-streams up")


def check_environment(config: Config) -> Finding:
    """Check that the environment is built in or installed."""
    name = config.env.backend
    if name in BUILT_IN:
        return Finding("environment", "ok", name)
    try:
        return Finding("environment", "ok", f"{name}: {entry_point_text(find_backend(name))}")
    except ConfigError as error:
        return Finding("environment", "fail", str(error), "set env.backend, or install or uninstall a package")


def check_browser(config: Config) -> Finding:
    """Check Chromium's headless shell, which ``miniwob`` needs."""
    if config.env.backend != "miniwob":
        return Finding("browser", "ok", f"not needed by environment {config.env.backend!r}")
    advice = "apt-get install chromium-headless-shell fonts-dejavu-core (as root), or `make setup`"
    command = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if command is None:
        return Finding("browser", "fail", "no chromium-headless-shell", advice)
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("browser", "fail", f"{command} does not run: {error}", advice)
    if gap := confinement_gap():
        return Finding("browser", "warn", f"pages are not confined wholly: {gap}", "docs/security.md")
    return Finding("browser", "ok", done.stdout.strip() or command)


def check_model(config: Config) -> Finding:
    """Check the configured model, which transformers and vLLM must both serve."""
    if not config.policy.path:
        return Finding("model", "ok", "the tiny policy, built when it is needed")
    hub_name = hub_models.hub_model(config.policy.path)
    if hub_name and hub_models.find_snapshot(hub_name) is None:
        advice = f"a run fetches it, or `.venv/model/bin/dart-streams policy fetch {hub_name}`"
        return Finding("model", "warn", f"{hub_name} of the hub is not in {hub_models.cache_folder()}", advice)
    folder = (hub_name and hub_models.find_snapshot(hub_name)) or Path(config.policy.path)
    missing = [*missing_files(folder), *(name for name in ("tokenizer_config.json",) if not (folder / name).exists())]
    if missing:
        advice = f"set policy.path to {hub_models.FORMS}, of images and text, or leave it out"
        return Finding("model", "fail", f"{folder} has no {', '.join(missing)}", advice)
    if not (program := find_programs().model).exists():
        return Finding("model", "warn", f"{folder} was not checked: no {program}", "make setup")
    if (found := model_fit.check_model(folder.absolute(), program, config)).reason:
        return Finding(
            "model",
            "fail",
            f"{folder} cannot be the policy: {found.reason}",
            "set another policy.path, or other keys of [policy]",
        )
    return Finding("model", "ok", f"{folder} ({found.architecture})")


def check_half_precision(config: Config) -> Finding:
    """Check layers in bfloat16, which crash where the CPU announces AMX that is not usable."""
    python = Path(".venv/model/bin/python")
    if config.trainer.dtype == "float32":
        return Finding("bfloat16", "ok", "not needed: trainer.dtype is float32")
    if not python.exists():
        return Finding("bfloat16", "warn", f"not checked: no {python}", "make setup")
    try:
        cap = cpu_features.needed_cap(Path(config.run.state_dir), str(python))
    except UserError as error:
        return Finding("bfloat16", "fail", "no instruction set works", str(error))
    found = f"AMX is not usable: {cpu_features.VARIABLE}={cap} is set for it" if cap else "its layers run"
    return Finding("bfloat16", "ok", found)


def check_tasks(config: Config) -> Finding:
    """Check the task set."""
    try:
        found = tasks.tasks_of(config)
    except UserError as error:
        return Finding("tasks", "fail", "no usable task set", str(error))
    sizes = f"{len(found.pages)} pages, {len(found.train)} training and {len(found.heldout)} held-out tasks"
    return Finding("tasks", "ok", sizes)


def check_disk(config: Config) -> Finding:
    """Check the disk: topics, screenshots, weights and checkpoints of a run take a few GiB."""
    folder = Path(config.run.state_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding("disk", "fail", f"{folder} is not writable", "set run.state_dir to a folder you may write to")
    runs = folder / "runs"
    if runs.is_dir() and folder.stat().st_mode & runs.stat().st_mode & 0o077:
        return Finding("disk", "warn", f"other users can read what is in {folder}", f"chmod 700 {folder}")
    room = room_at(folder)
    if room.files is not None and room.files < FEW_FILES:
        return Finding("disk", "fail", f"{room} at {folder}", "remove files there: each takes an inode")
    return judge_amount("disk", room.bytes / GIB, 3, 10, f"free at {folder}", "make room there")


def check_memory(_: Config) -> Finding:
    """Check the memory: services take 1.5 GiB, vLLM 3, the trainer 2, browsers 1.5."""
    return judge_amount("memory", psutil.virtual_memory().available / GIB, 4, 8, "available", "end other programs")


def judge_amount(check: str, gib: float, least: float, enough: float, what: str, advice: str) -> Finding:
    """Return a finding on an amount: ``fail`` below ``least`` GiB, ``warn`` below ``enough``."""
    status: Literal["ok", "warn", "fail"] = "ok" if gib >= enough else "warn" if gib >= least else "fail"
    advice = "" if status == "ok" else f"{advice}: {enough:g} GiB are enough"
    return Finding(check, status, f"{gib:.1f} GiB {what}", advice)


CHECKS: tuple[Callable[[Config], Finding], ...] = (
    check_python,
    check_environments,
    check_java,
    check_jars,
    check_broker,
    check_database,
    check_environment,
    check_browser,
    check_model,
    check_half_precision,
    check_tasks,
    check_disk,
    check_memory,
)
