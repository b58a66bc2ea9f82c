import base64
import http.client
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_desktops.desktop.guest.page_server import PageTable, RecordedSite
from dart_desktops.osworld import page_replay
from dart_desktops.osworld.pages import WebPages, visited_addresses, visits_web
from dart_desktops.osworld.placeholder_pages import make_pages
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.errors import ConfigError
from plugins.desktops.tests.unit.osworld.parsed_tasks import parse_task, step

SHOP = "https://www.shop.example/"
PICTURE = b"\x89PNG\x00\xff"


def visit(*urls: str, evaluator: dict[str, Any] | None = None) -> OsworldTask:
    return parse_task(evaluator or {"func": "infeasible"}, step("chrome_open_tabs", urls_to_open=list(urls)))


def entry(url: str, text: str, status: int = 200, encoding: str = "", **headers: str) -> dict[str, Any]:
    content = {"mimeType": "text/html", "text": text, **({"encoding": encoding} if encoding else {})}
    fields = [{"name": name.replace("_", "-"), "value": value} for name, value in headers.items()]
    response = {"status": status, "headers": fields, "content": content}
    return {"request": {"method": "GET", "url": url, "headers": []}, "response": response, "time": 1}


def record(folder: Path, name: str, *entries: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    log = {"version": "1.2", "creator": {"name": "a browser", "version": "1"}, "entries": list(entries)}
    (folder / name).write_bytes(msgspec.json.encode({"log": log}))


def test_the_addresses_of_a_task_are_those_of_its_tabs_and_getters():
    getter = {"type": "page_info", "url": "https://cart.example/cart"}
    rule = {"type": "rule", "rules": {"url": "https://never.example/"}}
    task = visit(
        SHOP,
        "http://localhost:8000/x",
        "http://127.0.0.1/x",
        "chrome://settings",
        SHOP,
        evaluator={"func": "exact_match", "result": getter, "expected": rule},
    )
    assert visited_addresses(task) == [SHOP, "https://cart.example/cart"]
    parse = {"type": "active_tab_html_parse", "category": "class"}
    assert visits_web(parse_task({"func": "exact_match", "result": parse}))
    assert not visits_web(visit("http://localhost:8000/x"))


def test_a_recorded_page_comes_before_a_placeholder(tmp_path: Path):
    tasks = [visit(SHOP), visit("https://other.example/a?b=1")]
    tmp_path.mkdir(exist_ok=True)
    assert [found.state for found in WebPages(tmp_path).survey(tasks)] == ["missing", "missing"]
    assert make_pages(WebPages(tmp_path), tasks) == 2
    assert make_pages(WebPages(tmp_path), tasks) == 0
    assert WebPages(tmp_path).is_made_for(tasks[0])
    record(tmp_path, "shop.har", entry("http://www.shop.example", "real"))
    pages = WebPages(tmp_path)
    assert [(found.url, found.state) for found in pages.survey(tasks)] == [
        ("https://other.example/a?b=1", "made"),
        (SHOP, "recorded"),
    ]
    assert not pages.is_made_for(tasks[0])


def test_a_second_placeholder_of_a_host_keeps_the_first(tmp_path: Path):
    make_pages(WebPages(tmp_path), [visit(SHOP)])
    make_pages(WebPages(tmp_path), [visit(f"{SHOP}more")])
    pages = WebPages(tmp_path)
    assert {pages.state_of(url) for url in (SHOP, f"{SHOP}more")} == {"made"}


def test_placeholders_include_the_address_that_is_expected(tmp_path: Path):
    result = {"type": "active_tab_info"}
    rule = {"type": "rule", "rules": {"type": "url", "url": f"{SHOP}cart"}}
    make_pages(WebPages(tmp_path), [visit(SHOP, evaluator={"func": "f", "result": result, "expected": rule})])
    assert WebPages(tmp_path).state_of(f"{SHOP}cart") == "made"


def test_a_file_that_is_no_recording_is_named(tmp_path: Path):
    (tmp_path / "broken.har").write_text("{}")
    with pytest.raises(ConfigError, match=r"broken\.har"):
        WebPages(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        WebPages(tmp_path / "none")


def test_a_task_gets_the_recordings_of_its_hosts_only(tmp_path: Path):
    encoded = base64.b64encode(PICTURE).decode()
    record(
        tmp_path,
        "shop.har",
        entry(SHOP, "<p>é", Content_Encoding="br", Content_Type="text/html", Set_Cookie="a=b"),
        entry("https://static.example/p.png", encoded, encoding="base64"),
        entry("https://gone.example/", "", status=0),
        entry("https://[/x", ""),
        entry("data:text/plain,x", "x"),
    )
    record(tmp_path, "other.har", entry("https://other.example/", "no"))
    responses = {answer["url"]: answer for answer in WebPages(tmp_path).responses_for(visit("https://shop.example"))}
    assert set(responses) == {SHOP, "https://static.example/p.png"}
    assert responses[SHOP]["headers"] == [["Content-Type", "text/html"], ["Set-Cookie", "a=b"]]
    assert base64.b64decode(responses[SHOP]["body"]).decode() == "<p>é"
    assert base64.b64decode(responses["https://static.example/p.png"]["body"]) == PICTURE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RecordedSite]:
    """A server of one page, as it runs in a sandbox."""
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes(page_replay.make_certificate(("www.shop.example",)))
    table = PageTable(
        [
            {"url": SHOP, "status": 200, "headers": [["Content-Type", "text/html"]], "body": "SGk="},
            {"url": f"{SHOP}old", "status": 302, "headers": [["Location", SHOP]], "body": ""},
        ]
    )
    running = RecordedSite(table, certificate, port=0)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def ask(server: RecordedSite, path: str, secure: bool = True, host: str = "www.shop.example") -> tuple[int, bytes, str]:
    port = server.server_address[1]
    connection: http.client.HTTPConnection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    if secure:
        trusted = ssl.create_default_context()
        trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trusted)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    result = answer.status, answer.read(), answer.getheader("Location", "")
    connection.close()
    return result


def test_one_port_answers_http_and_https_each_by_its_own_pages(server: RecordedSite):
    assert ask(server, "/") == (200, b"Hi", "")
    assert ask(server, "/?campaign=1") == (200, b"Hi", "")
    assert ask(server, "/old") == (302, b"", SHOP)
    assert ask(server, "/none")[0] == 404
    assert ask(server, "/", secure=False)[0] == 404
    assert ask(server, "/", host="other.example")[0] == 404


def test_the_browser_finds_recorded_hosts_only_and_knows_the_key():
    certificate = page_replay.make_certificate(("a.example", "b.example"))
    rules, digest = page_replay.browser_flags(("a.example", "b.example"), certificate)
    port = page_replay.page_server.PORT
    assert rules == f"--host-resolver-rules=MAP a.example 127.0.0.1:{port},MAP b.example 127.0.0.1:{port}"
    assert len(base64.b64decode(digest.partition("=")[2])) == 32
    assert page_replay.browser_flags(("a.example", "b.example"), certificate)[1] == digest
    other = page_replay.make_certificate(("a.example",))
    assert page_replay.browser_flags(("a.example",), other)[1] != digest
