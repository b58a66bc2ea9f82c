"""Weight versions in and out: one safetensors file in a directory at any fsspec URL, checked by its SHA-256."""

import contextlib
import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import fsspec
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from dart_streams import fsync as durable
from dart_streams.errors import UserError
from topics.weights import WeightVersion

FILE = "model.safetensors"
PROBE = "probe.json"
"""What transformers makes of a fixed prompt with these weights, if it is there: :mod:`dart_streams.policy.probe`."""


class WrongDigest(Exception):
    """The weights at a version's URI are not those that were published."""


class MissingWeights(UserError):
    """There are no weights where they should be."""


def save(state_dict: Mapping[str, torch.Tensor], uri: str, beside: Mapping[str, bytes] = {}) -> str:
    """Write ``state_dict`` to the directory ``uri``, small files ``beside`` it, and return its SHA-256 (hex).

    The file appears under its final name only when it is complete; on a local disk all of it is durable on return. Of
    tensors that share memory (tied embeddings) the first is kept, as Hugging Face does.
    """
    filesystem, folder = fsspec.core.url_to_fs(uri)
    local_disk = "file" in protocols(filesystem)
    with tempfile.TemporaryDirectory(prefix="weights-") as scratch:
        local = Path(scratch) / FILE
        save_file(distinct(state_dict), local, metadata={"format": "pt"})
        sha256 = digest(local)
        filesystem.makedirs(folder, exist_ok=True)
        for name, data in beside.items():
            filesystem.pipe_file(f"{folder}/{name}", data)
        filesystem.put_file(str(local), f"{folder}/{FILE}.partial")
    if local_disk:
        for name in (*beside, f"{FILE}.partial"):
            durable.sync(Path(folder) / name)
    filesystem.mv(f"{folder}/{FILE}.partial", f"{folder}/{FILE}")
    if local_disk:
        durable.sync(Path(folder))
        durable.sync(Path(folder).parent)
    return sha256


def fetch(version: WeightVersion, cache: Path) -> Path:
    """Return a local directory that holds the weights of ``version``, verified.

    Local URIs are used where they lie; others are copied once into ``cache``. Raises :class:`WrongDigest` if the file's
    SHA-256 is not the published one, :class:`MissingWeights` if there is no such file.
    """
    filesystem, folder = fsspec.core.url_to_fs(version.uri)
    if "file" in protocols(filesystem):
        verify(Path(folder) / FILE, version)
        return Path(folder)
    target = cache / f"{version.model_id}-{version.epoch}-{version.version}-{version.sha256[:12]}"
    if not (target / FILE).is_file():
        download(filesystem, f"{folder}/{FILE}", target, version)
    return target


def load(model: torch.nn.Module, path: Path) -> None:
    """Copy the weights in directory ``path`` into ``model``; refuse unknown and missing names.

    Raises :class:`MissingWeights` if ``path`` has no weights file.
    """
    if not (path / FILE).is_file():
        raise MissingWeights(f"no {FILE} in {path}")
    missing, unexpected = model.load_state_dict(load_file(path / FILE), strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    if unexpected or set(missing) - tied:
        raise ValueError(f"{path} is of another model: missing {sorted(missing)[:3]}, unknown {sorted(unexpected)[:3]}")


def of_model(folder: Path) -> Mapping[str, torch.Tensor]:
    """Return the state of a Hugging Face directory under the model's own names, as versions have them."""
    return own_state(AutoModelForImageTextToText.from_pretrained(folder))


def own_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's state without what is tied to a tensor of another name, as Hugging Face writes it."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def digest(file: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify(file: Path, version: WeightVersion) -> None:
    """Raise unless ``file`` is that of ``version``."""
    if not file.is_file():
        raise MissingWeights(f"version {version.version}: no weights at {version.uri} ({file} does not exist)")
    found = digest(file)
    if found != version.sha256:
        raise WrongDigest(f"version {version.version} at {version.uri}: sha256 {found}, published {version.sha256}")


def download(filesystem: fsspec.AbstractFileSystem, source: str, target: Path, version: WeightVersion) -> None:
    """Copy ``source`` into the directory ``target``, which appears only when it is complete and verified."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        partial = Path(scratch) / "weights"
        partial.mkdir()
        try:
            filesystem.get_file(source, str(partial / FILE))
        except FileNotFoundError:
            raise MissingWeights(f"version {version.version}: no weights at {version.uri}") from None
        with contextlib.suppress(FileNotFoundError):
            filesystem.get_file(f"{source.rpartition('/')[0]}/{PROBE}", str(partial / PROBE))
        verify(partial / FILE, version)
        partial.replace(target)


def distinct(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous CPU tensors, without those that share memory with an earlier one."""
    seen: set[int] = set()
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in sorted(state_dict.items()):
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        kept[name] = tensor.detach().to("cpu").contiguous()
    return kept


def protocols(filesystem: fsspec.AbstractFileSystem) -> tuple[str, ...]:
    """Return the URL schemes a file system answers to."""
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
