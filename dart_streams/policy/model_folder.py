"""The files of a Hugging Face model directory, with weights in one file or in shards. Without torch."""

import json
from pathlib import Path

from dart_streams.errors import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def missing_files(folder: Path) -> list[str]:
    """Return the files that a model directory lacks: its configuration, and weights that its index names."""
    names = ["config.json", *(shards_of(folder) or ())]
    return [name for name in names if not (folder / name).is_file()]


def shards_of(folder: Path) -> list[str] | None:
    """Return the files that hold a model's weights by its index, None without an index that counts.

    As in transformers, weights in one file win over an index. Raises :class:`UserError` for an index that is none.
    """
    if (folder / SINGLE).exists():
        return None
    try:
        weight_map = json.loads((folder / INDEX).read_bytes())["weight_map"]
        return sorted(set(map(str, weight_map.values())))
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / INDEX} is no index of safetensors files: copy or fetch the model again") from None


def refuse_partial(folder: Path) -> None:
    """Raise :class:`UserError` if a model directory lacks weights that its index names."""
    if missing := [name for name in shards_of(folder) or () if not (folder / name).is_file()]:
        raise UserError(f"{folder} has no {shorten(missing)}, which its {INDEX} names: copy or fetch the model again")


def refuse_missing(model_dir: Path) -> None:
    """Raise :class:`UserError` unless ``model_dir`` is a Hugging Face model directory."""
    if not model_dir.is_dir():
        raise UserError(f"no model directory {model_dir}: set policy.path, or leave it empty for the tiny demo policy")
    for names in (("config.json",), ("preprocessor_config.json", "processor_config.json"), ("tokenizer_config.json",)):
        if not any((model_dir / name).is_file() for name in names):
            raise UserError(
                f"{model_dir} has no {' or '.join(names)}: policy.path must be a complete Hugging Face model directory"
            )
    refuse_partial(model_dir)


def shorten(names: list[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    others = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + others
