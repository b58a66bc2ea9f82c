"""Docker Compose resolves the files of the stack in each combination that users need."""

import json
from pathlib import Path
from typing import Any

import pytest

from dart_streams.errors import UserError
from tests.compose.engine import Engine
from tests.compose.stack import ROOT

SECRETS = "/app/deploy/secrets"


def resolved(docker: Engine, *files: str, profiles: str = "*", **environment: str) -> dict[str, Any]:
    """Return what Compose makes of the stack's file and others over it."""
    given = [part for file in ("docker-compose.yml", *files) for part in ("-f", file)]
    docker = docker._replace(environment={**docker.environment, **environment})
    wanted = ("compose", *given, "--profile", profiles, "config", "--format", "json")
    return dict(json.loads(docker.docker(*wanted, cwd=ROOT)))


def test_with_services_elsewhere_nothing_of_the_stack_asks_its_own(docker: Engine):
    assert "kafka-ui" in resolved(docker, profiles="observe")["services"]
    services = resolved(docker, "deploy/docker/outside.yml", profiles="observe")["services"]
    assert not {"kafka", "cassandra", "kafka-ui"} & set(services)
    assert {"env", "collector", "jaeger", "prometheus", "grafana"} <= set(services)


def test_a_gpu_is_reserved_for_the_model_side_only(docker: Engine):
    services = resolved(docker, "deploy/docker/gpu.yml", DART_MODEL_REQUIREMENTS="model-gpu")["services"]
    with_gpu = {name for name, one in services.items() if "devices" in json.dumps(one.get("deploy", {}))}
    assert with_gpu == {"policy", "trainer", "rollout"}
    assert services["trainer"]["build"]["args"]["REQUIREMENTS"] == "model-gpu"


def test_whom_builds_trust_is_a_file_that_the_user_names(docker: Engine):
    secret = resolved(docker)["secrets"]["ca"]["file"]
    assert secret == str(ROOT / "deploy/docker/no-ca.pem")
    assert resolved(docker, DART_BUILD_CA="/etc/ssl/certs/x.pem")["secrets"]["ca"]["file"] == "/etc/ssl/certs/x.pem"


def test_nothing_is_published_beyond_loopback_and_pages_have_no_way_out(docker: Engine):
    services = (stack := resolved(docker))["services"]
    assert (list(services["env"]["networks"]), stack["networks"]["workers"]["internal"]) == (["workers"], True)
    reached = {name for name, one in services.items() if "workers" in one["networks"]}
    assert reached == {"cassandra", "collector", "env", "kafka"}
    assert all(one["pids_limit"] for one in services.values())
    writes = {name for name, one in services.items() if "/streams:" in one["image"] and not one.get("read_only")}
    assert writes == {"cli"}, "images of ours do not change, but for files that a person asks for"
    ports = {name: [port["host_ip"] for port in one["ports"]] for name, one in services.items() if "ports" in one}
    assert set(ports) == {"kafka", "cassandra", "ui", "gate", "grafana"}
    assert {address for addresses in ports.values() for address in addresses} == {"127.0.0.1"}


def test_each_kind_of_process_has_its_own_secrets_and_pages_no_token(docker: Engine):
    services = resolved(docker)["services"].items()
    mounted = {name: {v["target"]: v["source"] for v in one.get("volumes", ())} for name, one in services}
    folders = {name: Path(found[SECRETS]) for name, found in mounted.items() if SECRETS in found}
    kinds = {name: name for name in ("env", "ui", "trainer", "rollout", "curator", "recorder", "monitor")}
    kinds |= dict.fromkeys(("topics-apply", "schema-apply", "policy", "before", "demo", "cli"), "run")
    assert {name: folder.name for name, folder in folders.items()} == kinds
    assert all((folder / ".gitkeep").exists() for folder in folders.values()), "else the engine makes root's"
    assert {name for name, found in mounted.items() if "/app/.dart/page" in found} == {"ui", "before", "demo"}
    assert mounted["env"]["/app/.dart"] == "env", "its files of the run are its own"
    apart = {name: v for name, one in services for v in one.get("volumes", ()) if v["target"] == "/app/.dart/env"}
    assert {name: v["read_only"] for name, v in apart.items()} == {"ui": True, "demo": True, "cli": True}


def test_an_unknown_file_of_an_authority_is_named(docker: Engine):
    with pytest.raises(UserError, match=r"/nowhere/ca\.pem"):
        environment = {**docker.environment, "DART_BUILD_CA": "/nowhere/ca.pem"}
        docker._replace(environment=environment).docker("compose", "build", "env", cwd=ROOT)
