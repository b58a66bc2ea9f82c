"""What LoRA adapters take, and what frozen weights save of a training step's memory. Pure.

Everything but the adapters is frozen, so only they have gradients and optimizer state; the vision tower saves nothing
for the backward pass, and a frozen layer of the language model nothing of its input.
"""

from collections import Counter
from collections.abc import Sequence

from dart_streams.config.trainer import Lora, is_target
from dart_streams.console.sizing.model_files import LinearLayer, ModelShape
from dart_streams.errors import UserError

FLOAT32 = 4
GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
"""The linear layers of a layer of the language model, in its order, those that read the same tensor together."""


def adapted_layers(linear: Sequence[LinearLayer], settings: Lora) -> list[LinearLayer]:
    """Return those of a language model's linear layers that have an adapter, none with rank 0.

    Raises UserError if a target is no such layer.
    """
    if not settings.rank:
        return []
    known = sorted({layer.name.rpartition(".")[2] for layer in linear})
    for target in settings.targets:
        if not any(is_target(layer.name, target) for layer in linear):
            raise UserError(
                f"trainer.lora.targets: no linear layer of the language model is named {target!r}; it has "
                f"{', '.join(known)}"
            )
    found = [layer for layer in linear if settings.adapts(layer.name)]
    if not found:
        raise UserError("trainer.lora.rank: the language model's layers have no matrices to adapt: set it to 0")
    return found


def parameters(layers: Sequence[LinearLayer], rank: int) -> int:
    """Return the parameters of the adapters: A and B of each layer."""
    return rank * sum(layer.out + layer.into for layer in layers)


def largest(layers: Sequence[LinearLayer], rank: int) -> int:
    """Return the parameters of the adapters of that layer of the model which has most."""
    blocks: Counter[str] = Counter()
    for layer in layers:
        blocks[layer.block] += rank * (layer.out + layer.into)
    return max(blocks.values(), default=0)


def frozen(layers: Sequence[LinearLayer]) -> int:
    """Return the parameters of the frozen matrices beside the adapters."""
    return sum(layer.out * layer.into for layer in layers)


def activations(model: ModelShape, tokens: int, width: int, settings: Lora) -> float:
    """Return the bytes that ``tokens`` save in all language layers for the backward pass; layers are alike.

    A norm keeps a float32 copy of its input; attention its query, keys, values for each head, its output and the
    rotation; the MLP three intermediates; an adapter its input, which layers that read the same share, and its ``rank``
    values between A and B. In the first layer, what comes before the first adapter keeps nothing.
    """
    text = model.text
    adapted = {layer.name.rpartition(".")[2] for layer in adapted_layers(model.linear, settings)}
    groups = [bool(adapted & set(names)) for names in GROUPS]
    first = groups.index(True) if any(groups) else 0
    output = text.heads * text.head_dim
    # What the output layer's adapter reads, attention keeps anyway.
    read = sum(
        size for size, is_read in zip((text.hidden, 0, text.hidden, text.intermediate), groups, strict=True) if is_read
    )
    own = width * (read + len(adapted) * settings.rank)
    norm = FLOAT32 * text.hidden
    attention = width * (4 * output + 2 * text.head_dim)
    mlp = 3 * width * text.intermediate
    in_first = own + (attention, width * output, 0, 0)[first] + (norm if first < 2 else 0) + (mlp if first < 3 else 0)
    return tokens * (in_first + (text.layers - 1) * (2 * norm + attention + mlp + own))
