"""Keys of each workload on a real S3 server, by the bucket policy of deploy/k8s: env pods write screenshots only."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dart_streams.errors import AccessRefused
from dart_streams.store.objects import BlobObjects
from tests.objects.server import BUCKET, PROGRAM, ObjectServer, running

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="`make test-s3` builds the S3 server"),
]
RIGHTS = Path(__file__).parents[2] / "deploy/k8s/components/object-screenshots/rights.json"
WORKLOADS = ("env", "rollout", "trainer", "ui", "policy")
SCREENSHOTS, WEIGHTS = f"s3://{BUCKET}/screenshots", f"s3://{BUCKET}/weights"
NAME, OTHER, PICTURE = "0" * 64, "1" * 64, b"picture"
Opened = Callable[..., BlobObjects]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectServer]:
    with running(tmp_path) as server:
        owner = fsspec.filesystem("s3", **keys_of(server.environment))
        for name in WORKLOADS:
            server.add_account(name)
        owner.call_s3("put_bucket_policy", Bucket=BUCKET, Policy=RIGHTS.read_text())
        yield server


def keys_of(environment: dict[str, str]) -> dict[str, Any]:
    return {
        "endpoint_url": environment["AWS_ENDPOINT_URL"],
        "key": environment["AWS_ACCESS_KEY_ID"],
        "secret": environment["AWS_SECRET_ACCESS_KEY"],
        "skip_instance_cache": True,
    }


@pytest.fixture
def opened(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Return the objects of a place, as a pod of a workload opens them."""

    def open_as(workload: str, place: str = SCREENSHOTS) -> BlobObjects:
        environment = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": workload}
        for name, value in {**environment, "AWS_SECRET_ACCESS_KEY": f"{workload}-secret"}.items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        return BlobObjects(place, 60.0)

    return open_as


def may(act: Callable[..., object], *arguments: object) -> bool:
    try:
        act(*arguments)
    except AccessRefused:
        return False
    return True


def test_env_pods_write_screenshots_and_read_or_remove_none(opened: Opened):
    env = opened("env")
    env.put(NAME, PICTURE)
    assert not may(env.get, NAME)
    assert not may(env.remove, [NAME])
    assert opened("ui").get(NAME) == PICTURE


def test_a_key_that_may_only_write_writes_a_known_screenshot_again(opened: Opened, server: ObjectServer):
    env = opened("env")
    env.put(NAME, PICTURE)
    assert env.size(NAME) == -1, "unknown, so that it is written again"
    (server.objects / BUCKET / "screenshots/00" / NAME).unlink()
    env.put(NAME, PICTURE)
    assert opened("rollout").size(NAME) == len(PICTURE)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_has_the_rights_of_its_work(opened: Opened, workload: str):
    opened("env").put(NAME, PICTURE)
    objects = opened(workload)
    assert may(objects.put, OTHER, PICTURE) is (workload in ("env", "trainer"))
    assert may(objects.get, NAME) is (workload != "env")
    assert may(objects.get, "2" * 64) is (workload != "env"), "a missing one is no refused one"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_keys_of_screenshots_write_and_read_no_weights(opened: Opened, server: ObjectServer, workload: str):
    owner = fsspec.filesystem("s3", **keys_of(server.environment))
    owner.pipe_file(f"{BUCKET}/weights/00/{NAME}", PICTURE)
    weights = opened(workload, WEIGHTS)
    assert not may(weights.put, OTHER, PICTURE)
    assert not may(weights.get, NAME)
