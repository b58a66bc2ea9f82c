"""The Hugging Face hub: models are fetched into its cache, and exports are pushed. Needs huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE count as huggingface_hub documents them.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
from huggingface_hub import HfApi, constants, errors, snapshot_download
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import filter_repo_objects

from dart_streams.disk_room import refusal_of, room_at
from dart_streams.errors import AccessRefused, ServiceUnavailable, UserError
from dart_streams.policy import hub_models
from dart_streams.policy.hub_models import NOT_NEEDED, HubModel
from dart_streams.policy.model_folder import missing_files, refuse_partial

TIMEOUT_S = 30.0
"""Longest wait for an answer about a repository."""
STALE_S = 600.0
"""A part of a file that was not written for so long belongs to a fetch that was killed."""
NOT_PUSHED = [".cache/*", ".git/*", "*.incomplete", "*.lock"]
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


class FetchedModel(msgspec.Struct, frozen=True):
    """The folder of a fetched model, its commit, and what ``policy.path`` then names."""

    folder: Path
    commit: str
    path: str


class PushedFile(msgspec.Struct, frozen=True):
    """A file to push, and its size."""

    name: str
    bytes: int


def fetch_model(model: HubModel, output: Path | None = None) -> FetchedModel:
    """Fetch a model into the hub's cache, or into ``output``, with progress on stderr; return where it is.

    Without HF_HUB_OFFLINE a branch is resolved at the hub; a commit that is in the cache needs no network. Raises
    :class:`UserError` with the reason and the remedy.
    """
    commit = hub_models.find_commit(model) if model.is_pinned or constants.is_offline_mode() else ""
    if commit and output is None and (folder := hub_models.find_snapshot(HubModel(model.repo, commit))):
        return named_model(model, commit, folder, None)
    with refused_by_hub(model, output or hub_models.cache_folder()):
        info = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True, timeout=TIMEOUT_S)
        commit = str(info.sha)
        refuse_unusable(model, info)
        place = output or hub_models.repo_folder(model) / "snapshots" / commit
        remove_stale(output / ".cache" if output else hub_models.repo_folder(model))
        refuse_full_disk(model, info, place)
        folder = Path(snapshot_download(model.repo, revision=commit, ignore_patterns=NOT_NEEDED, local_dir=output))
    refuse_partial(folder)
    if output is None:
        hub_models.record_commit(model, commit)
    return named_model(model, commit, folder, output)


def remove_stale(folder: Path) -> None:
    """Remove the parts of files that a killed fetch has left: huggingface_hub neither uses nor removes them."""
    for file in folder.rglob("*.incomplete"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > STALE_S:
                file.unlink()


def named_model(model: HubModel, commit: str, folder: Path, output: Path | None) -> FetchedModel:
    """Return a fetched model as ``policy.path`` names it: by its commit, or by its own folder."""
    return FetchedModel(folder, commit, f"{model.repo}@{commit}" if output is None else str(output.absolute()))


def needed_files(info: ModelInfo) -> dict[str, int]:
    """Return the files of a repository that are fetched, and their sizes in bytes."""
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return {name: sizes[name] for name in filter_repo_objects(sizes, ignore_patterns=NOT_NEEDED)}


def refuse_unusable(model: HubModel, info: ModelInfo) -> None:
    """Raise :class:`UserError` for a repository without configuration or safetensors."""
    names = list(needed_files(info))
    if "config.json" not in names:
        raise UserError(f"{model} has no config.json: it is no model for transformers. Name another repository")
    if not any(name.endswith(".safetensors") and "/" not in name for name in names):
        raise UserError(f"{model} has no *.safetensors: name a repository or revision with weights in this format")


def refuse_full_disk(model: HubModel, info: ModelInfo, folder: Path) -> None:
    """Raise :class:`UserError` if the files that are missing in ``folder`` do not fit on its disk."""
    missing = sum(size for name, size in needed_files(info).items() if not (folder / name).exists())
    if missing > (room := room_at(folder)).bytes:
        raise UserError(
            f"{model} needs {missing / 1e9:.1f} GB more, and {room} at {folder}: make room, or name another disk by "
            "HF_HOME or --output"
        )


@contextlib.contextmanager
def refused_by_hub(model: HubModel, place: Path) -> Iterator[None]:
    """Raise :class:`UserError` with the remedy for what the hub, the network or the disk refuses."""
    repo, endpoint = model.repo, constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise AccessRefused(
            f"{repo} is gated: accept its terms at {endpoint}/{repo}, and set HF_TOKEN to a token of that account"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{repo} has no revision {model.revision!r}: name a branch, a tag or a commit") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{endpoint} has no model {repo}, or it is private: correct the id, or set HF_TOKEN to a token that may "
            f"read it. policy.path is {hub_models.FORMS}"
        ) from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise ServiceUnavailable(offline_text(model)) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise AccessRefused(f"{endpoint} refuses the token for {repo} ({status}): set another HF_TOKEN") from error
        raise ServiceUnavailable(f"{endpoint} answers {status} for {repo}: try again later") from error
    except httpx2.TransportError as error:
        raise ServiceUnavailable(unreachable_text(model, error)) from error
    except OSError as error:
        if (refusal := refusal_of(error, place)) is None:
            raise
        raise UserError(f"{refusal}, or set HF_HOME, and repeat the command") from error


def offline_text(model: HubModel) -> str:
    """Return the reason why a model that is not in the cache is not fetched."""
    if constants.is_offline_mode():
        return (
            f"HF_HUB_OFFLINE is set, and {model} is not complete in {hub_models.cache_folder()}: unset it, or copy "
            "the cache from a machine that has fetched the model"
        )
    return unreachable_text(model, None)


def unreachable_text(model: HubModel, error: Exception | None) -> str:
    """Return the reason why the hub was not reached, and the commit to use without it."""
    why = f" ({error})" if error else ""
    commit = hub_models.find_commit(model)
    if commit and hub_models.find_snapshot(HubModel(model.repo, commit)):
        remedy = f"use the fetched commit, {model.repo}@{commit}, or set HF_HUB_OFFLINE=1"
    else:
        remedy = "check the network and HF_ENDPOINT, or name a folder"
    return f"{constants.ENDPOINT} was not reached for {model}{why}: {remedy}"


def pushed_files(folder: Path) -> list[PushedFile]:
    """Return the files of an export to push; raise :class:`UserError` for a folder that is no export."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: `dart-streams policy export DIR` makes one")
    if (missing := missing_files(folder)) and not all((folder / name).is_file() for name in ADAPTER):
        raise UserError(f"{folder} is no export, neither a model (it has no {missing[0]}) nor an adapter")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [
        PushedFile(name, (folder / name).stat().st_size)
        for name in filter_repo_objects(names, ignore_patterns=NOT_PUSHED)
    ]


def push_folder(folder: Path, model: HubModel, *, public: bool, message: str) -> str:
    """Push an export to a repository, which is created private if it is missing; return the commit's address.

    Raises :class:`UserError` if the repository is public and ``public`` is not set, or if the hub refuses.
    """
    api = HfApi()
    with refused_by_hub(model, folder):
        api.create_repo(model.repo, private=not public, exist_ok=True)
        if not public and not api.model_info(model.repo, timeout=TIMEOUT_S).private:
            raise UserError(f"{model.repo} exists and is public: add --public, or name another repository")
        done = api.upload_folder(
            repo_id=model.repo, folder_path=folder, commit_message=message, ignore_patterns=list(NOT_PUSHED)
        )
    return str(done.commit_url)


def push_warnings(folder: Path) -> list[str]:
    """Return what a reader of an export could not use: an adapter's base that is a folder of this machine."""
    try:
        base = json.loads((folder / ADAPTER[0]).read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if hub_models.parse_id(str(base)):
        return []
    return [f"{ADAPTER[0]} names the base model by a folder, {base}: write its id there before you push"]


def address_of(model: HubModel) -> str:
    """Return the address of a repository."""
    return f"{constants.ENDPOINT}/{model.repo}"
