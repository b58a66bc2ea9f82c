"""The files of a Hugging Face model directory, with weights in one file or in shards. Without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_streams.errors import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's limit."""
QUANTIZED = ("I8", "U8", "F8_", "F6_", "F4")
"""How the types of quantized weights begin in safetensors."""
QUANTIZATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Of ModelOpt, AutoGPTQ and AutoAWQ, beside a config.json that has no quantization_config."""
AGAIN = "copy or fetch the model again"


def missing_files(folder: Path) -> list[str]:
    """Return the files that a model directory lacks: its configuration, and weights that its index names."""
    names = ["config.json", *(shards_of(folder) or ())]
    return [name for name in names if not (folder / name).is_file()]


def shards_of(folder: Path) -> list[str] | None:
    """Return the files that hold a model's weights by its index, None without an index that counts."""
    weights = weight_map(folder)
    return None if weights is None else sorted(set(weights.values()))


def weight_map(folder: Path) -> dict[str, str] | None:
    """Return the file of each tensor by a model's index, None without an index that counts.

    As in transformers, weights in one file win over an index. Raises :class:`UserError` for an index that is none.
    """
    if (folder / SINGLE).exists():
        return None
    try:
        files = json.loads((folder / INDEX).read_bytes())["weight_map"]
        return {name: str(file) for name, file in files.items()}
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{folder / INDEX} is no index of safetensors files: {AGAIN}") from None


def read_configuration(folder: Path) -> dict[str, Any]:
    """Read a model's config.json; raise UserError if there is none, or the weights are quantized."""
    file = folder / "config.json"
    try:
        config: dict[str, Any] = dict(json.loads(file.read_bytes()))
    except OSError as error:
        raise UserError(f"{folder} has no config.json: {error.strerror}; name a Hugging Face model directory") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is not JSON of a model: {error}") from None
    for part in (config, *(value for name, value in config.items() if name.endswith("_config"))):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, Mapping) and (found := part.get(key)):
                method = found.get("quant_method") if isinstance(found, Mapping) else found
                raise UserError(quantized_text(folder, f"config.json has {key}, {method or 'without quant_method'}"))
    if names := [name for name in QUANTIZATION_FILES if (folder / name).exists()]:
        raise UserError(quantized_text(folder, f"it has {names[0]}"))
    return config


def quantized_text(folder: Path, why: str) -> str:
    """Return the refusal of a model with quantized weights."""
    return (
        f"{folder} has quantized weights ({why}), which can't be trained: name the model that they were made of, with "
        "weights in bfloat16, float16 or float32"
    )


def refuse_partial(folder: Path) -> None:
    """Raise :class:`UserError` if a model directory lacks weights that its index names, or has damaged ones."""
    read_shapes(folder)


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of a model's tensors by name, by the headers of its files; none for a folder without weights.

    Raises :class:`UserError` for weights that are missing, cut, damaged or quantized.
    """
    indexed = weight_map(folder) or {}
    alone = [folder / SINGLE] if (folder / SINGLE).exists() else folder.glob("*.safetensors")
    files = sorted({folder / name for name in indexed.values()} or alone)
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(f"{folder} has no {shorten(missing)}, which its {INDEX} names: {AGAIN}")
    tensors = {str(file.relative_to(folder)): read_header(file) for file in files}
    if missing := [name for name, file in indexed.items() if name not in tensors[file]]:
        raise UserError(f"{folder} lacks {shorten(missing)}: {indexed[missing[0]]} is not that of its {INDEX}: {AGAIN}")
    return {name: shape for of_file in tensors.values() for name, shape in of_file.items()}


def read_header(file: Path) -> dict[str, list[int]]:
    """Return the shapes of a safetensors file's tensors; raise :class:`UserError` unless it has all their bytes."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header, size = stream.read(length), stream.seek(0, 2)
        if len(header) < length:
            raise ValueError(f"it has {size} bytes, and its header alone {length}")
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        shapes = {str(name): list(entry["shape"]) for name, entry in entries.items()}
        kinds = {str(entry["dtype"]): name for name, entry in entries.items()}
        whole = 8 + length + max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        if size != whole:
            raise ValueError(f"it has {size} bytes, and its header describes {whole}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} is no whole safetensors file: {error}: {AGAIN}") from None
    for kind, name in kinds.items():
        if kind.startswith(QUANTIZED):
            raise UserError(quantized_text(file.parent, f"{name} of {file.name} is {kind}"))
    return shapes


def refuse_missing(model_dir: Path) -> None:
    """Raise :class:`UserError` unless ``model_dir`` is a Hugging Face model directory."""
    if not model_dir.is_dir():
        raise UserError(f"no model directory {model_dir}: set policy.path, or leave it empty for the tiny demo policy")
    for names in (("config.json",), ("preprocessor_config.json", "processor_config.json"), ("tokenizer_config.json",)):
        if not any((model_dir / name).is_file() for name in names):
            raise UserError(
                f"{model_dir} has no {' or '.join(names)}: policy.path must be a complete Hugging Face model directory"
            )
    read_configuration(model_dir)
    refuse_partial(model_dir)


def shorten(names: list[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    others = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + others
