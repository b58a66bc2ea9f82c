"""What the rollout engine and the trainer allocate on each GPU, and how many GPUs each needs. Pure.

Parameters, gradients, optimizer state and saved activations are counted from the model's own shapes, as the trainer
makes them (``tests/model/test_gpu_memory.py`` compares them with what torch allocates). What depends on CUDA, kernels
and the allocator is assumed, and says so.
"""

from collections.abc import Iterator

import msgspec

from dart_streams.config import Config
from dart_streams.console.sizing import adapter_memory
from dart_streams.console.sizing.model_files import ModelShape
from dart_streams.policy.staged_weights import UTILIZATION, SecondSetPlace, second_set_place

GIB = 2**30
FLOAT32 = 4
BATCHED_TOKENS = 8192
"""Prompt tokens of an engine step, at least (``workers/rollout/vllm_settings.py``)."""
CACHE_BLOCK = 16
"""Tokens of a block of vLLM's key-value cache."""
CUDA_GIB = 1.5
"""Assumed: CUDA's context, the communicators, kernels and fragmentation of a process."""
TEXT_ALLOWANCE = 256
"""Tokens of a prompt beside screenshots and earlier answers: the instruction and the chat template."""
LOGIT_COPIES = 3
"""Float32 tensors of the size of the logits that the backward pass keeps (``trainer.objective.token_logp``)."""


class Item(msgspec.Struct, frozen=True):
    """Something that is allocated on a GPU, in bytes, and how it was counted."""

    what: str
    size: float
    formula: str
    assumed: bool = False


class Lengths(msgspec.Struct, frozen=True):
    """Tokens of a screenshot, of a prompt, and of a prompt with its answer."""

    image: int
    prompt: int
    sequence: int


def lengths(model: ModelShape, config: Config) -> Lengths:
    """Return the longest that the configuration allows."""
    policy = config.policy
    image = -(-policy.max_pixels // model.pixels_per_token)
    prompt = policy.max_images * image + policy.max_texts * policy.max_tokens + TEXT_ALLOWANCE
    return Lengths(image, prompt, prompt + policy.max_tokens)


def text_activations(model: ModelShape, width: int) -> int:
    """Return the bytes that a token's passage of one language layer saves for the backward pass.

    ``width`` is that of the compute dtype in bytes. Two norms keep a float32 copy of their input, what they normalized
    and their output; attention its query, its keys and values for each head, and its output; the MLP four
    intermediates.
    """
    text = model.text
    attention = text.heads * text.head_dim
    return 2 * (FLOAT32 + 2 * width) * text.hidden + width * (4 * attention + 4 * text.intermediate)


def vision_activations(model: ModelShape, width: int) -> int:
    """Return the bytes that a patch's passage of one vision layer saves: as in the text, with one fused projection."""
    vision = model.vision
    return 2 * (FLOAT32 + 2 * width) * vision.hidden + width * (7 * vision.hidden + 4 * vision.intermediate)


def activations(model: ModelShape, tokens: int, patches: int, width: int, recompute: bool) -> float:
    """Return the bytes that a forward pass of ``tokens`` and ``patches`` saves in all layers, without the logits.

    With ``recompute`` each layer saves its input, and one layer at a time all of the above.
    """
    text, vision = text_activations(model, width), vision_activations(model, width)
    # The patches themselves, and what the merger and the last norm keep.
    pixels = patches * values(model) * width
    ends = patches * 5 * model.vision.hidden * width + tokens * (FLOAT32 + width) * model.text.hidden
    if not recompute:
        return tokens * text * model.text.layers + patches * vision * model.vision.layers + pixels + ends
    inputs = tokens * model.text.hidden * model.text.layers + patches * model.vision.hidden * model.vision.layers
    return inputs * width + max(tokens * text, patches * vision) + pixels + ends


def saved(model: ModelShape, config: Config, tokens: int, patches: int, width: int) -> float:
    """Return the bytes that a forward pass saves in all layers: frozen ones, beside adapters, save less."""
    settings = config.trainer
    if not settings.lora.rank:
        return activations(model, tokens, patches, width, settings.recompute)
    of_layers = adapter_memory.activations(model, tokens, width, settings.lora)
    ends = tokens * (FLOAT32 + width) * model.text.hidden
    if not settings.recompute:
        return of_layers + ends
    # Each layer's input, and the rotations of three axes, which all layers share.
    inputs = tokens * width * (model.text.hidden * model.text.layers + 6 * model.text.head_dim)
    return inputs + of_layers / model.text.layers + ends


def values(model: ModelShape) -> int:
    """Return the values of a patch: two frames, three colors."""
    return 2 * 3 * model.vision.patch**2


def logits(model: ModelShape, answer_tokens: int) -> int:
    """Return the bytes that the log-probabilities of ``answer_tokens`` save."""
    return answer_tokens * model.text.vocabulary * FLOAT32 * LOGIT_COPIES


def trainer(model: ModelShape, config: Config, gpus: int) -> Iterator[Item]:
    """Yield what each of ``gpus`` ranks allocates in a step; parameters are float32, whatever the layers compute in."""
    settings, lora = config.trainer, config.trainer.lora
    width = FLOAT32 if settings.dtype == "float32" else 2
    adapted = adapter_memory.adapted_layers(model.linear, lora)
    yield from state(model, config, gpus)
    of_trained = trained(model, config)
    yield Item("gradients", FLOAT32 * of_trained / gpus, f"{FLOAT32} B x {of_trained / 1e9:.3g} G parameters / {gpus}")
    if settings.kl_beta:
        size = FLOAT32 * model.parameters / gpus
        yield Item("reference model (trainer.kl_beta)", size, f"{FLOAT32} B x {model.parameters / 1e9:.3g} G / {gpus}")
    beside = adapter_memory.largest(adapted, lora.rank)
    roots = 2 if settings.kl_beta else 1
    gathered = width * (roots * model.root + 2 * (model.layer + beside))
    yield Item("gathered parameters", gathered, f"{width} B x (embeddings and head, and two layers)")
    # Reduced in float32, from gradients in the compute dtype.
    unsharded = (width + FLOAT32) * (beside if adapted else max(model.root, model.layer))
    yield Item("gradients before they are reduced", unsharded, f"({width} + 4) B x the largest part")
    of = lengths(model, config)
    tokens = max(settings.micro_batch_tokens, of.sequence)
    patches = model.vision.merge**2 * of.image * max(1, round(tokens / of.sequence)) * config.policy.max_images
    yield Item("screenshots", FLOAT32 * patches * values(model), f"4 B x {patches:,} patches")
    how = "recomputed" if settings.recompute else "kept"
    kept = saved(model, config, tokens, patches, width)
    yield Item(f"activations, {how}", kept, f"{tokens:,} tokens, {patches:,} patches, {width} B")
    yield attention_mask(model, config, tokens, width)
    answers = max(1, round(tokens / of.sequence)) * config.policy.max_tokens
    # As much again is under way while they are made and while their gradients are.
    yield Item("logits", 2 * logits(model, answers), f"2 x {LOGIT_COPIES} x 4 B x {answers:,} tokens x the vocabulary")
    yield Item("CUDA and fragmentation", CUDA_GIB * GIB, "assumed", assumed=True)


def trained(model: ModelShape, config: Config) -> int:
    """Return the number of parameters that have gradients: all, or those of the adapters."""
    adapted = adapter_memory.adapted_layers(model.linear, config.trainer.lora)
    return adapter_memory.parameters(adapted, config.trainer.lora.rank) if adapted else model.parameters


def state(model: ModelShape, config: Config, gpus: int) -> Iterator[Item]:
    """Yield what each of ``gpus`` ranks keeps from step to step."""
    of_trained, all_of = trained(model, config), model.parameters
    if config.trainer.lora.rank:
        all_of += of_trained
    for what, of, copies in (("parameters", all_of, 1), ("optimizer state (AdamW)", of_trained, 2)):
        formula = f"{copies * FLOAT32} B x {of / 1e9:.3g} G parameters / {gpus}"
        yield Item(what, copies * FLOAT32 * of / gpus, formula)


def publishing(model: ModelShape, config: Config, gpus: int) -> float:
    """Return what each rank allocates while a version is made: what is rounded, or merged, is kept as it was.

    One tensor at a time is gathered.
    """
    settings = config.trainer
    copied = 0
    if settings.lora.rank:
        copied = adapter_memory.frozen(adapter_memory.adapted_layers(model.linear, settings.lora))
    elif settings.publish.dtype != "float32":
        copied = model.parameters
    reference = model.parameters / gpus if settings.kl_beta else 0
    kept = total(state(model, config, gpus)) + FLOAT32 * (copied / gpus + reference + model.largest_tensor)
    return kept + CUDA_GIB * GIB


def attention_mask(model: ModelShape, config: Config, tokens: int, width: int) -> Item:
    """Return the mask of rows of a prompt with a group's answers: as booleans, and as each layer's kernel adds it."""
    answers = config.curation.budget.base * config.policy.max_tokens
    row = min(tokens, lengths(model, config).prompt + answers)
    layers = 1 if config.trainer.recompute else model.text.layers
    size = max(1, tokens // row) * row**2 * (1 + layers * width)
    return Item("attention mask", size, f"(1 + {layers} x {width}) B x ({row:,} tokens of a row)²", assumed=True)


def loading(model: ModelShape, config: Config, gpus: int) -> float:
    """Return what each rank allocates at its start: a whole model in float32, before it is sharded.

    With a reference model it is the second one, beside its share of the first.
    """
    share = model.parameters / gpus if config.trainer.kl_beta else 0
    return FLOAT32 * (model.parameters + share) + CUDA_GIB * GIB


def served_bytes(model: ModelShape) -> int:
    """Return the bytes of the weights as they are served."""
    return model.bits // 8 * model.parameters


def place_of_second_set(model: ModelShape, config: Config, gpu_gib: float) -> SecondSetPlace:
    """Return where a rollout worker puts its second set on such a GPU (``rollout.vllm.second_set``)."""
    return second_set_place(config.rollout.vllm.second_set, True, served_bytes(model), gpu_gib * GIB)


def engine(model: ModelShape, config: Config, second_set: bool = False) -> Iterator[Item]:
    """Yield what a rollout worker's vLLM allocates on its GPU beside its key-value cache.

    Adapters take nothing there: their versions are merged before vLLM has them.
    """
    width = model.bits // 8
    of, text, vision = lengths(model, config), model.text, model.vision
    weights = served_bytes(model)
    yield Item("weights", weights, f"{width} B x {model.parameters / 1e9:.2f} G parameters")
    if second_set:
        yield Item("second set of weights", weights, "a switch is a copy between two steps")
    batched = max(BATCHED_TOKENS, of.image * config.policy.max_images)
    of_text = batched * width * (2 * text.intermediate + 2 * text.hidden + 3 * text.heads * text.head_dim)
    of_vision = batched * vision.merge**2 * width * (2 * vision.intermediate + 6 * vision.hidden)
    work = max(of_text, of_vision)
    yield Item("activations", work, f"{batched:,} tokens of a step, estimated", assumed=True)
    drawn = 4 * FLOAT32 * config.rollout.max_in_flight * text.vocabulary
    yield Item("logits", drawn, f"4 x 4 B x {config.rollout.max_in_flight} requests x the vocabulary")
    yield Item("CUDA and graphs", CUDA_GIB * GIB, "assumed", assumed=True)


def cache_token(model: ModelShape) -> int:
    """Return the bytes of the key-value cache of one token, in all layers."""
    return 2 * model.text.layers * model.text.kv_heads * model.text.head_dim * model.bits // 8


def cache_blocks(model: ModelShape, config: Config, gpu_gib: float, second_set: bool = False) -> int:
    """Return the blocks of cache for which a GPU has room; 0 or less: none."""
    room = UTILIZATION * gpu_gib * GIB - total(engine(model, config, second_set))
    return int(room // (CACHE_BLOCK * cache_token(model)))


def total(items: Iterator[Item]) -> float:
    """Return the sum in bytes."""
    return sum(item.size for item in items)


class Split(msgspec.Struct, frozen=True):
    """How GPUs are shared: ``requests`` of full length that fit into a rollout GPU's cache at a time."""

    rollout: int
    trainer: int
    requests: int


def requests_at_once(model: ModelShape, config: Config, gpu_gib: float, second_set: bool = False) -> int:
    """Return how many requests of full length a rollout GPU's cache holds."""
    of_one = -(-lengths(model, config).sequence // CACHE_BLOCK)
    return max(0, cache_blocks(model, config, gpu_gib, second_set)) // of_one


def fits_trainer(model: ModelShape, config: Config, gpu_gib: float, gpus: int) -> bool:
    """Return whether a trainer on ``gpus`` GPUs fits, at its start and in a step."""
    step = total(trainer(model, config, gpus))
    return max(loading(model, config, gpus), publishing(model, config, gpus), step) <= gpu_gib * GIB


def split(model: ModelShape, config: Config, gpus: int, gpu_gib: float) -> Split | None:
    """Return the smallest trainer that fits, and the other GPUs for rollout; None if there is none."""
    on_device = place_of_second_set(model, config, gpu_gib) == "device"
    requests = requests_at_once(model, config, gpu_gib, on_device)
    training = next((count for count in range(1, gpus) if fits_trainer(model, config, gpu_gib, count)), None)
    return Split(gpus - training, training, requests) if training and requests else None


def advice(model: ModelShape, config: Config, gpus: int, gpu_gib: float) -> list[str]:
    """Return what to change so that it fits, each change alone tried by the same count; nothing helps: more GPUs."""
    replace = msgspec.structs.replace
    settings, policy = config.trainer, config.policy
    of = lengths(model, config)
    tried: list[tuple[str, Config]] = []
    halved = replace(settings, dtype="bfloat16")
    tried.append(('trainer.dtype = "bfloat16"', replace(config, trainer=halved)))
    thrifty = replace(halved, recompute=True)
    tried.append(('trainer.dtype = "bfloat16" and trainer.recompute = true', replace(config, trainer=thrifty)))
    least = replace(thrifty, micro_batch_tokens=of.sequence)
    text = f"these and trainer.micro_batch_tokens = {of.sequence}, one row of full length"
    tried.append((text, replace(config, trainer=least)))
    smaller = replace(policy, max_pixels=policy.max_pixels // 2, max_images=max(1, policy.max_images // 2))
    least = replace(least, micro_batch_tokens=lengths(model, replace(config, policy=smaller)).sequence)
    text = f"these, policy.max_pixels = {smaller.max_pixels} and policy.max_images = {smaller.max_images}"
    tried.append((text, replace(config, trainer=least, policy=smaller)))
    if settings.kl_beta:
        tried.append(
            ("these and trainer.kl_beta = 0", replace(config, trainer=replace(least, kl_beta=0.0), policy=smaller))
        )
    for text, changed in tried:
        if changed != config and split(model, changed, gpus, gpu_gib) is not None:
            return [f"set {text}"]
    best = tried[-1][1]
    enough = next((count for count in range(gpus + 1, 257) if split(model, best, count, gpu_gib) is not None), None)
    if enough is None:
        return [f"no number of GPUs of {gpu_gib:g} GiB is enough: take larger ones, or a smaller model"]
    return [f"take {enough} GPUs of {gpu_gib:g} GiB (with {tried[-1][0]}), larger ones, or a smaller model"]
