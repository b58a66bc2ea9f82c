"""Models named by their id on the Hugging Face hub, and their snapshots in its cache. Without huggingface_hub.

The streams environment cannot have that library, since it needs a newer click than Faust. The layout of the cache is
documented: ``models--ORGANIZATION--NAME/snapshots/COMMIT``, and ``refs/BRANCH`` with the commit of a branch.
"""

import json
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from dart_streams.fsync import replace_file
from dart_streams.policy.model_folder import missing_files

ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]+))?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"
FORMS = "a folder (/models/UI-TARS-1.5-7B) or a model of the hub (ORGANIZATION/NAME, ORGANIZATION/NAME@REVISION)"
"""The two forms of ``policy.path``."""
NOT_NEEDED = [
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite"),
    *("original/*", "onnx/*", "consolidated*"),
]
"""Weights in other formats than that of transformers' safetensors; they are not fetched."""


class HubModel(msgspec.Struct, frozen=True):
    """A model repository at a revision: a branch, a tag or a commit."""

    repo: str
    revision: str = DEFAULT_REVISION

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which always has the same files."""
        return COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


def parse_id(text: str) -> HubModel | None:
    """Return the model that a text names on the hub, None if the text cannot be an id; a folder is not looked for."""
    found = ID.fullmatch(text)
    if found is None or "--" in found["repo"] or ".." in text or found["repo"].endswith(".git"):
        return None
    return HubModel(found["repo"], found["revision"] or DEFAULT_REVISION)


def hub_model(text: str) -> HubModel | None:
    """Return the model that a ``policy.path`` names on the hub; None for a folder that is there, and other texts."""
    return None if Path(text).is_dir() else parse_id(text)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the hub's cache, by the variables of huggingface_hub."""
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")  # noqa: PTH118
    place = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")  # noqa: PTH118
    return Path(os.path.expandvars(place)).expanduser().absolute()


def find_commit(model: HubModel, cache: Path | None = None) -> str:
    """Return the commit of a model as far as the cache knows it, else empty."""
    if model.is_pinned:
        return model.revision
    try:
        return (repo_folder(model, cache) / "refs" / model.revision).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def record_commit(model: HubModel, commit: str) -> None:
    """Let the cache know the commit of a branch or tag, for use without the hub."""
    if not model.is_pinned:
        file = repo_folder(model) / "refs" / model.revision
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, commit.encode())


def find_snapshot(model: HubModel, cache: Path | None = None) -> Path | None:
    """Return the folder of a model in the cache, None if it is not there or not complete."""
    commit = find_commit(model, cache)
    if not commit:
        return None
    folder = repo_folder(model, cache) / "snapshots" / commit
    listed = listed_files(repo_folder(model, cache) / "trees" / f"{commit}.json")
    is_complete = not missing_files(folder) and all((folder / name).is_file() for name in listed)
    return folder if is_complete and any(file.is_file() for file in folder.glob("*.safetensors")) else None


def listed_files(tree: Path) -> list[str]:
    """Return the files of a commit that are fetched, by the list that huggingface_hub keeps; empty without one.

    A fetch that was killed may have all weights, and no tokenizer.
    """
    try:
        names = list(json.loads(tree.read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [name for name in names if not any(fnmatch(name, pattern) for pattern in NOT_NEEDED)]


def repo_folder(model: HubModel, cache: Path | None = None) -> Path:
    """Return the folder of a repository in the cache, there or not."""
    return (cache or cache_folder()) / f"models--{model.repo.replace('/', '--')}"
