"""Stand-in for the Hugging Face hub over HTTP on the loopback interface, for the real huggingface_hub.

It has the endpoints that fetching and pushing ask for: a repository's commits and files with ETag and X-Repo-Commit,
the creation of repositories, preupload, Git LFS and commits. Xet is left out: set ``HF_HUB_DISABLE_XET`` to push.
"""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_BYTES = 100_000
"""Files of this size and larger are kept in Git LFS, as are safetensors."""
REPO = r"(?P<repo>[^/]+/[^/]+)"
Files = dict[str, bytes]


class Repository:
    """The commits of a model repository; ``refs`` has the commit of each branch."""

    def __init__(self, *, private: bool = False, gated: bool = False) -> None:
        self.private, self.gated = private, gated
        self.commits: dict[str, Files] = {}
        self.refs: dict[str, str] = {}

    def commit(self, files: Files, branch: str = "main") -> str:
        """Add a commit with these files, and let a branch have it; return its id."""
        state = hashlib.sha1(json.dumps([branch, len(self.commits)]).encode())
        for name, content in sorted(files.items()):
            state.update(name.encode() + hashlib.sha256(content).digest())
        self.refs[branch] = state.hexdigest()
        self.commits[state.hexdigest()] = dict(files)
        return state.hexdigest()

    def resolve(self, revision: str) -> str | None:
        """Return the commit of a revision, None if there is none."""
        commit = self.refs.get(revision, revision)
        return commit if commit in self.commits else None


class LocalHub:
    """The hub: its repositories, the token that may read private ones, and the requests that it was sent."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: Files = {}
        self.token = "hf_secret"
        self.requests: list[str] = []
        self.cut_after: int | None = None
        """Bytes of a file after which a connection is cut; None: never."""
        self.pause_s = 0.0
        """Time before a large file is sent."""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self}))
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        """The hub's address, for ``HF_ENDPOINT``."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables of a client with its cache in ``home``."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), "600"),
        }

    def add(self, repo: str, folder: Path, branch: str = "main", **options: bool) -> str:
        """Add a commit with the files of a folder to a repository; return its id."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.repositories.setdefault(repo, Repository(**options)).commit(files, branch)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Run a hub until the end of the block."""
    hub = LocalHub()
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def is_lfs(name: str, content: bytes) -> bool:
    """Return whether a file is kept in Git LFS."""
    return name.endswith(".safetensors") or len(content) >= LFS_BYTES


def etag_of(name: str, content: bytes) -> str:
    """Return a file's ETag: its SHA-256 in Git LFS, else its SHA-1 in Git."""
    if is_lfs(name, content):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def file_entry(name: str, content: bytes) -> dict[str, Any]:
    """Return a file as the hub lists it."""
    entry: dict[str, Any] = {"size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if is_lfs(name, content):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "sha256": sha256, "size": len(content), "pointerSize": 134}
    return entry


class Refused(Exception):
    """An answer other than success, with the hub's error code."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(code)
        self.status, self.code = status, code


class HubHandler(BaseHTTPRequestHandler):
    """One request; a route is a method and a pattern of its path."""

    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer a request that reads."""
        self.respond()

    do_HEAD = do_POST = do_PUT = do_GET

    def respond(self) -> None:
        """Answer by the first route that fits, or with the error that it raises."""
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        method = "GET" if self.command == "HEAD" else self.command
        try:
            for verb, pattern, answer in ROUTES:
                if verb == method and (found := pattern.fullmatch(path)):
                    answer(self, **found.groupdict())
                    return
            raise Refused(HTTPStatus.NOT_FOUND)
        except Refused as refused:
            self.send(b"", status=refused.status, headers={"X-Error-Code": refused.code} if refused.code else {})

    def send(self, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: Any, status: int = HTTPStatus.OK) -> None:
        """Send an answer in JSON."""
        self.send(json.dumps(value).encode(), status=status, headers={"Content-Type": "application/json"})

    def is_authorized(self) -> bool:
        """Return whether the request has the hub's token."""
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def repository(self, repo: str) -> Repository:
        """Return a repository that the request may read."""
        found = self.hub.repositories.get(repo)
        if found is None or (found.private and not self.is_authorized()):
            raise Refused(HTTPStatus.NOT_FOUND if self.is_authorized() else HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        return found

    def files(self, repo: str, revision: str) -> tuple[str, Files]:
        """Return the commit of a revision, and its files."""
        found = self.repository(repo)
        commit = found.resolve(revision)
        if commit is None:
            raise Refused(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        return commit, found.commits[commit]

    def send_info(self, repo: str, revision: str = "main") -> None:
        """Send a repository's commit and files."""
        found = self.repository(repo)
        if not found.commits:
            self.send_json({"id": repo, "private": found.private, "siblings": []})
            return
        commit, files = self.files(repo, revision)
        siblings = [{"rfilename": name, **file_entry(name, content)} for name, content in files.items()]
        self.send_json(
            {"id": repo, "sha": commit, "private": found.private, "gated": found.gated, "siblings": siblings}
        )

    def send_tree(self, repo: str, revision: str) -> None:
        """Send the files of a revision."""
        _, files = self.files(repo, revision)
        self.send_json([{"type": "file", "path": name, **file_entry(name, content)} for name, content in files.items()])

    def send_file(self, repo: str, revision: str, name: str) -> None:
        """Send a file, from the byte on that is asked for."""
        commit, files = self.files(repo, revision)
        if self.repository(repo).gated and not self.is_authorized():
            raise Refused(HTTPStatus.FORBIDDEN, "GatedRepo")
        if name not in files:
            raise Refused(HTTPStatus.NOT_FOUND, "EntryNotFound")
        content, headers = files[name], {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        headers["ETag"] = f'"{etag_of(name, content)}"'
        if is_lfs(name, content):
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(content))}
        if self.command == "GET" and is_lfs(name, content):
            time.sleep(self.hub.pause_s)
        first = int(re.sub(r"\D.*", "", self.headers.get("Range", "bytes=0-").removeprefix("bytes=")) or 0)
        part = content[first:]
        if self.hub.cut_after is not None and self.command == "GET" and len(part) > self.hub.cut_after:
            self.cut(part, headers)
            return
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self.send(part, status=206 if first else 200, headers=headers)

    def cut(self, part: bytes, headers: dict[str, str]) -> None:
        """Send the beginning of a file, and cut the connection."""
        self.send_response(200)
        for name, value in {"Content-Length": str(len(part)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(part[: self.hub.cut_after])
        self.close_connection = True

    def create_repository(self) -> None:
        """Create a repository, unless it is there."""
        self.require_token()
        asked = json.loads(self.content)
        repo = f"{asked['organization']}/{asked['name']}"
        status = HTTPStatus.CONFLICT if repo in self.hub.repositories else HTTPStatus.OK
        self.hub.repositories.setdefault(repo, Repository(private=asked.get("visibility") == "private"))
        self.send_json({"url": f"{self.hub.url}/{repo}", "name": repo}, status)

    def require_token(self) -> None:
        """Refuse a request that may not write."""
        if not self.is_authorized():
            raise Refused(HTTPStatus.UNAUTHORIZED)

    def accept_yaml(self) -> None:
        """Accept the metadata of a model card."""
        self.send_json({"errors": [], "warnings": []})

    def send_upload_modes(self, repo: str, revision: str) -> None:
        """Send how each file is to be uploaded."""
        self.require_token()
        asked = json.loads(self.content)["files"]
        modes = ["lfs" if is_lfs(file["path"], bytes(file["size"])) else "regular" for file in asked]
        files = [
            {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}
            for file, mode in zip(asked, modes, strict=True)
        ]
        self.send_json({"files": files})

    def send_lfs_actions(self, repo: str) -> None:
        """Send where each large file is to be uploaded."""
        self.require_token()
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{each['oid']}"}}}
            for each in json.loads(self.content)["objects"]
        ]
        self.send_json({"transfer": "basic", "objects": objects})

    def keep_object(self, oid: str) -> None:
        """Keep a large file; refuse one with another digest."""
        if hashlib.sha256(self.content).hexdigest() != oid:
            raise Refused(HTTPStatus.BAD_REQUEST)
        self.hub.objects[oid] = self.content
        self.send(b"")

    def add_commit(self, repo: str, revision: str) -> None:
        """Commit small files and uploaded large ones."""
        self.require_token()
        found = self.repository(repo)
        files = dict(found.commits.get(found.resolve(revision) or "", {}))
        for line in map(json.loads, self.content.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        commit = found.commit(files, revision)
        self.send_json({"commitUrl": f"{self.hub.url}/{repo}/commit/{commit}", "commitOid": commit})


Answer = Callable[..., None]
ROUTES: list[tuple[str, re.Pattern[str], Answer]] = [
    (verb, re.compile(pattern), answer)
    for verb, pattern, answer in (
        ("GET", rf"/api/models/{REPO}", HubHandler.send_info),
        ("GET", rf"/api/models/{REPO}/revision/(?P<revision>.+)", HubHandler.send_info),
        ("GET", rf"/api/models/{REPO}/tree/(?P<revision>[^/]+)/?", HubHandler.send_tree),
        ("GET", rf"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", HubHandler.send_file),
        ("POST", r"/api/repos/create", HubHandler.create_repository),
        ("POST", r"/api/validate-yaml", HubHandler.accept_yaml),
        ("POST", rf"/api/models/{REPO}/preupload/(?P<revision>[^/]+)", HubHandler.send_upload_modes),
        ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", HubHandler.send_lfs_actions),
        ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", HubHandler.keep_object),
        ("POST", rf"/api/models/{REPO}/commit/(?P<revision>[^/]+)", HubHandler.add_commit),
    )
]
