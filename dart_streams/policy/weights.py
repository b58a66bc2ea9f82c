"""Weight files: one safetensors file in a directory at any fsspec URL, verified by SHA-256."""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from dart_streams import file_storage
from dart_streams.errors import UserError
from dart_streams.file_storage import Storage
from dart_streams.policy import finite
from topics.weights import WeightKind, WeightPart

FILE = "model.safetensors"
FILES: dict[WeightKind, str] = {"full": FILE, "delta": "delta.safetensors", "adapter": "adapter_model.safetensors"}
"""File names by kind; a version may exist in several kinds."""
FORMAT = {"format": "pt"}
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
PROBE = "probe.json"
"""Optional output of transformers for a fixed prompt: :mod:`dart_streams.policy.probe`."""

ADAPTER_CONFIG = "adapter_config.json"
BESIDE = (PROBE, ADAPTER_CONFIG)


class WrongDigest(Exception):
    """Weights at a version's URI that differ from the published ones."""


class MissingWeights(UserError):
    """Weights that are not at their location."""


def save(
    state_dict: Mapping[str, torch.Tensor],
    uri: str,
    beside: Mapping[str, bytes] = {},
    kind: WeightKind = "full",
    metadata: Mapping[str, str] = {},
) -> str:
    """Write ``state_dict`` and the small files ``beside`` to the directory ``uri``; return the SHA-256 (hex).

    The file appears once it is complete; on a local disk all of it is durable on return. Of tensors that share memory
    (tied embeddings) the first is kept, as in Hugging Face. Raises :class:`~dart_streams.policy.finite.NotFinite`, with
    nothing written, for an infinite or NaN value, and :class:`~dart_streams.file_storage.StorageUnreachable`.
    """
    if fault := finite.find_nonfinite(state_dict.items()):
        raise finite.NotFinite(f"weights that are not finite are not written to {uri}: {fault}")
    storage = file_storage.open_storage(uri)
    with tempfile.TemporaryDirectory(prefix="weights-") as scratch:
        local = Path(scratch) / FILES[kind]
        try:
            save_file(distinct_tensors(state_dict), local, metadata={**FORMAT, **metadata})
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"{scratch}, where they are prepared, can't be written ({error}): set TMPDIR to a folder with room"
            ) from error
        sha256 = digest_file(local)
        with storage.reached():
            storage.make_folder()
            for other, data in beside.items():
                storage.write(other, data)
            storage.put(local, local.name)
    return sha256


def fetch(part: WeightPart, cache: Path) -> Path:
    """Return a local directory with the verified file of ``part``.

    Local URIs are used in place; others are copied once into ``cache``, and verified there too. Raises
    :class:`WrongDigest`, :class:`MissingWeights`, or :class:`~dart_streams.file_storage.StorageUnreachable`.
    """
    storage = file_storage.open_storage(part.uri)
    if storage.is_local:
        verify(storage, part)
        return Path(storage.folder)
    target = cache / f"{storage.folder.rpartition('/')[2]}-{part.kind}-{part.digest_of_file[:16]}"
    if not is_cached(target / FILES[part.kind], part.digest_of_file):
        download(storage, target, part)
    return target


def is_cached(file: Path, sha256: str) -> bool:
    """Return whether a cache has this file; remove the directory of a damaged one."""
    if file.is_file() and digest_file(file) != sha256:
        shutil.rmtree(file.parent)
    return file.is_file()


def load(model: torch.nn.Module, path: Path) -> None:
    """Copy the weights in directory ``path`` into ``model``; refuse unknown and missing names.

    Raises :class:`MissingWeights` if ``path`` has no weights file.
    """
    if not (path / FILE).is_file():
        raise MissingWeights(f"no {FILE} in {path}")
    load_state(model, load_file(path / FILE), str(path))


def load_state(model: torch.nn.Module, state: Mapping[str, torch.Tensor], source: str) -> None:
    """Copy the weights of ``source`` into ``model``; refuse unknown and missing names."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    if unexpected or set(missing) - tied:
        raise ValueError(
            f"{source} is of another model: missing {sorted(missing)[:3]}, unknown {sorted(unexpected)[:3]}"
        )


def model_state(folder: Path) -> Mapping[str, torch.Tensor]:
    """Return the state of a Hugging Face directory under the model's own names, as in versions."""
    return own_state(AutoModelForImageTextToText.from_pretrained(folder))


def own_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's state without tied tensors, as Hugging Face writes it."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def digest_file(file: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_tensors(state_dict: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 (hex) of the file that :func:`save` would write of all weights, without writing it.

    Mixed types are written after all, since safetensors determines their order.
    """
    tensors = distinct_tensors(state_dict)
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) != 1 or not kinds <= DTYPES.keys():
        with tempfile.TemporaryDirectory(prefix="weights-") as scratch:
            return save(tensors, scratch)
    header: dict[str, object] = {"__metadata__": FORMAT}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    state = hashlib.sha256(len(encoded).to_bytes(8, "little") + encoded)
    for tensor in tensors.values():
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def verify(storage: Storage, part: WeightPart) -> None:
    """Raise unless the file in ``storage`` is the one of ``part``; reads all of it."""
    try:
        with storage.reached():
            sha256 = storage.digest(FILES[part.kind])
    except FileNotFoundError:
        raise MissingWeights(f"version {part.version}: no {part.kind} weights at {part.uri}") from None
    if sha256 != part.digest_of_file:
        raise WrongDigest(
            f"version {part.version} ({part.kind}) at {part.uri}: sha256 {sha256}, published {part.digest_of_file}"
        )


def find_damage(part: WeightPart) -> str:
    """Return the damage of the file of ``part``, empty if there is none; reads all of it.

    Raises :class:`~dart_streams.file_storage.StorageUnreachable` if the store is unavailable.
    """
    try:
        verify(file_storage.open_storage(part.uri), part)
    except file_storage.StorageUnreachable:
        raise
    except (WrongDigest, MissingWeights, OSError) as error:
        return str(error)
    return ""


def download(storage: Storage, target: Path, part: WeightPart) -> None:
    """Copy the file of ``part`` into the directory ``target``, which appears once it is verified."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file = FILES[part.kind]
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        partial = Path(scratch) / "weights"
        partial.mkdir()
        with storage.reached():
            try:
                storage.filesystem.get_file(f"{storage.folder}/{file}", str(partial / file))
            except FileNotFoundError:
                raise MissingWeights(f"version {part.version}: no {part.kind} weights at {part.uri}") from None
            for name in BESIDE:
                with contextlib.suppress(FileNotFoundError):
                    storage.filesystem.get_file(f"{storage.folder}/{name}", str(partial / name))
        verify(file_storage.open_storage(str(partial)), part)
        partial.replace(target)


def distinct_tensors(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous CPU tensors, without those that share memory with an earlier one."""
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in sorted(state_dict.items()):
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        tensors[name] = tensor.detach().to("cpu").contiguous()
    return tensors
