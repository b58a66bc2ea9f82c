"""Images are built where a proxy opens TLS, and where jars are given without any network for them."""

import shutil
from pathlib import Path

import pytest

from console.launch.services.jars import fetch_jars
from dart_streams.errors import UserError
from dart_streams.java import SHARED_JARS
from tests.compose.company import Company
from tests.compose.engine import Engine
from tests.compose.proxy import make_authority
from tests.compose.stack import ROOT, Stack

NEEDED = (".dockerignore", "deploy/docker", "deploy/local/page")
PAGE = "dart-streams/page:test"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the page's stage needs of a fresh checkout."""
    for name in NEEDED:
        source, copied = ROOT / name, tmp_path / "checkout" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copied) if source.is_dir() else shutil.copy(source, copied)
    return tmp_path / "checkout"


def build_page(engine: Engine, checkout: Path, ca: Path | None, network: str, *arguments: str) -> str:
    settings = {
        "CONTEXT": str(checkout),
        "NETWORK": network,
        "DART_BUILD_CA": str(ca or checkout / "deploy/docker/no-ca.pem"),
    }
    engine = engine._replace(environment={**engine.environment, **settings})
    return engine.docker("compose", "-f", "tests/compose/page.yml", "build", *arguments, "page", cwd=ROOT)


def test_maven_fetches_through_a_proxy_that_opens_tls(stack: Stack, checkout: Path, proxy: Company, tmp_path: Path):
    bundle = tmp_path / "bundle.pem"
    other = make_authority(tmp_path).read_text()
    # As bundles come: of another system, with remarks, and the one that matters at the end.
    bundle.write_text(f"# Company\n{other}\nThe proxy's:\n{proxy.authority.read_text()}".replace("\n", "\r\n"))
    build_page(stack.engine, checkout, bundle, "default", "--build-arg", f"HTTPS_PROXY={proxy.proxy}")
    assert proxy.asked
    jars = stack.engine.docker("run", "--rm", PAGE, "ls", "/jars").split()
    assert jars == sorted(path.name for path in fetch_jars("page", SHARED_JARS).iterdir())


def test_a_build_that_can_fetch_nothing_gives_advice(stack: Stack, checkout: Path):
    with pytest.raises(UserError, match="DART_BUILD_CA=FILE"):
        build_page(stack.engine, checkout, None, "none")


def test_jars_that_are_given_need_no_network(stack: Stack, checkout: Path):
    given = fetch_jars("page", SHARED_JARS)
    shutil.copytree(given, checkout / ".dart/jars" / given.name)
    (checkout / ".dart/jars/page-of-another-pom").mkdir()
    (checkout / ".dart/jars/page-of-another-pom/old.jar").write_text("")
    build_page(stack.engine, checkout, None, "none")
    jars = stack.engine.docker("run", "--rm", PAGE, "ls", "/jars").split()
    assert jars == sorted(path.name for path in given.iterdir())


def test_an_authority_that_is_not_in_pem_is_named(stack: Stack, checkout: Path, tmp_path: Path):
    binary = tmp_path / "ca.der"
    binary.write_bytes(b"\x30\x82\x01\x0a\x02\x82")
    with pytest.raises(UserError, match=r"DART_BUILD_CA\) has no certificate in PEM"):
        build_page(stack.engine, checkout, binary, "none")


def test_the_image_does_not_trust_the_authorities_of_the_build(stack: Stack):
    assert stack.inside("-c", "import os; print(os.listdir('/usr/local/share/ca-certificates'))").strip() == "[]"
