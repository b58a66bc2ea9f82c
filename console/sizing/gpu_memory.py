"""Memory that the rollout engine and the trainer allocate, and the number of GPUs that each needs. Pure.

Parameters, gradients, optimizer state and saved activations are counted from the shapes of the model's tensors
(``tests/model/breadth/test_gpu_memory.py`` compares them with torch's allocations). CUDA, kernels and the allocator are
assumed, as the formulas say.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from console.sizing.model_files import ModelShape
from dart_streams.config import Config
from dart_streams.config.trainer import Lora, is_target
from dart_streams.errors import UserError
from dart_streams.policy.encoder_cache import BATCHED_TOKENS, encoder_capacity
from dart_streams.policy.staged_weights import UTILIZATION, SecondSetPlace, second_set_place

GIB = 2**30
FLOAT32 = 4
CACHE_BLOCK = 16
"""Tokens of a block of vLLM's key-value cache."""
CUDA_BYTES = 1.5 * GIB
"""Assumed size of CUDA's context, communicators, kernels and fragmentation in each process."""
TEXT_ALLOWANCE = 256
"""Prompt tokens of the instruction and the chat template."""
LOGIT_COPIES = 3
"""Float32 tensors of the size of the logits that the backward pass keeps (``trainer.objective.token_logp``)."""
WORKING_LOGITS = 7
"""Those that exist at once while it computes."""
MOMENTS = {"adamw": 2 * FLOAT32, "adamw_8bit": 2 * (1 + FLOAT32 / 256)}
"""Bytes of optimizer state for a parameter; in 8 bits, 256 values share a scale."""
HEAD_TOKENS = 512
"""Advised ``trainer.head_tokens``."""
MAX_GPUS = 256


class Item(msgspec.Struct, frozen=True):
    """One allocation in bytes, and its formula."""

    what: str
    size: float
    formula: str


class Split(msgspec.Struct, frozen=True):
    """GPUs of each part; ``requests`` is how many requests of full length fit into a rollout worker's cache."""

    rollout: int
    trainer: int
    requests: int


def adapted_layers(linear: Mapping[str, tuple[int, int]], lora: Lora) -> dict[str, tuple[int, int]]:
    """Return the linear layers that have an adapter; raise UserError if a target is not among the layers."""
    if not lora.rank:
        return {}
    for target in lora.targets:
        if not any(is_target(layer, target) for layer in linear):
            raise UserError(
                f"trainer.lora.targets: no linear layer of the language model is named {target!r}; it has "
                f"{', '.join(sorted({layer.rpartition('.')[2] for layer in linear}))}"
            )
    if not linear:
        raise UserError("trainer.lora.rank: the language model's layers have no matrices to adapt: set it to 0")
    return {layer: shape for layer, shape in linear.items() if lora.adapts(layer)}


class MemoryEstimate:
    """Memory of the trainer and of rollout workers, in bytes, for one model and configuration.

    ``image``, ``prompt`` and ``sequence`` are the longest lengths in tokens that the configuration allows; a sequence
    is a prompt with its answer. ``width`` is the compute dtype's bytes.
    """

    def __init__(self, model: ModelShape, config: Config) -> None:
        policy = config.policy
        self.model = model
        self.config = config
        self.lora = config.trainer.lora
        self.offloaded = config.trainer.offload == "all"
        self.width = FLOAT32 if config.trainer.dtype == "float32" else 2
        self.ranks = config.rollout.vllm.tensor_parallel
        adapted = adapted_layers(model.linear, self.lora)
        self.adapted = {layer.rpartition(".")[2] for layer in adapted}
        self.adapters = self.lora.rank * sum(map(sum, adapted.values()))
        self.merged = sum(out * into for out, into in adapted.values())
        self.trained = self.adapters or model.parameters
        self.image = -(-policy.max_pixels // model.pixels_per_token)
        self.prompt = policy.max_images * self.image + policy.max_texts * policy.max_tokens + TEXT_ALLOWANCE
        self.sequence = self.prompt + policy.max_tokens

    def layer_activations(self) -> tuple[float, float]:
        """Return the bytes that a language layer saves for a token, and a vision layer for a patch.

        Norms keep a float32 copy of their input; attention its queries, keys and values per head, and its output; the
        MLP its intermediates. Trained weights keep their inputs as well. Of a frozen model, adapters keep their inputs
        and ``rank`` values, and the vision tower nothing.
        """
        text, vision, width = self.model.text, self.model.vision, self.width
        if not self.adapters:
            norms = 2 * (FLOAT32 + 2 * width)
            return (
                norms * text.hidden + width * 4 * (text.attention + text.intermediate),
                norms * vision.hidden + width * (7 * vision.hidden + 4 * vision.intermediate),
            )
        # Adapters that read the same tensor share it, and attention keeps what the output layer reads.
        inputs = text.hidden * (bool(self.adapted & {"q_proj", "k_proj", "v_proj"}))
        inputs += text.hidden * (bool(self.adapted & {"gate_proj", "up_proj"}))
        inputs += text.intermediate * ("down_proj" in self.adapted) + len(self.adapted) * self.lora.rank
        rotation = 2 * text.attention // text.heads
        return 2 * FLOAT32 * text.hidden + width * (4 * text.attention + rotation + 3 * text.intermediate + inputs), 0.0

    def activations(self, tokens: int, patches: int) -> float:
        """Return the bytes that a forward pass saves in all layers, logits not included.

        With ``trainer.recompute`` each layer saves its input, and one layer at a time all of its activations.
        """
        text, vision, width = self.model.text, self.model.vision, self.width
        token, patch = self.layer_activations()
        ends = tokens * (FLOAT32 + width) * text.hidden
        inputs = tokens * text.hidden * text.layers
        if self.adapters:
            inputs += tokens * 6 * text.attention // text.heads  # rotations of three axes, which layers share
        else:
            ends += patches * width * (vision.patch_values + 5 * vision.hidden)
            inputs += patches * vision.hidden * vision.layers
        if self.config.trainer.recompute:
            return width * inputs + max(tokens * token, patches * patch) + ends
        return tokens * token * text.layers + patches * patch * vision.layers + ends

    def logits(self, answer_tokens: int) -> int:
        """Return the bytes that the log-probabilities of ``answer_tokens`` save: with chunks, the last states."""
        if self.config.trainer.head_tokens:
            return answer_tokens * self.model.text.hidden * self.width
        return answer_tokens * self.model.text.vocabulary * FLOAT32 * LOGIT_COPIES

    def answer_tokens(self, gpus: int) -> int:
        """Return the most answer tokens of a micro-batch: rows of several steps, or of a prompt's several answers."""
        policy, trainer = self.config.policy, self.config.trainer
        siblings = -(-self.config.curation.budget.base // gpus) * policy.max_tokens
        tokens = max(trainer.micro_batch_tokens, self.sequence)
        first_steps = min(trainer.micro_batch, max(1, tokens // (self.image + TEXT_ALLOWANCE + siblings)))
        return min(tokens, max(self.rows(tokens) * policy.max_images * policy.max_tokens, first_steps * siblings))

    def rows(self, tokens: int) -> int:
        """Return the rows of full length in a micro-batch of ``tokens``."""
        return max(1, round(tokens / self.sequence))

    def head(self, answers: int) -> Iterator[Item]:
        """Yield what the log-probabilities of a micro-batch's answers take while they are computed."""
        text, chunk = self.model.text, self.config.trainer.head_tokens
        computed = min(chunk, answers) if chunk else answers
        size = WORKING_LOGITS * FLOAT32 * computed * text.vocabulary
        yield Item("logits", size, f"{WORKING_LOGITS} x 4 B x {computed:,} tokens x the vocabulary")
        if chunk and not self.adapters:
            size = self.width * text.vocabulary * text.hidden
            yield Item("gradient of a chunk", size, f"{self.width} B x the output layer, beside that of all chunks")

    def trainer_step(self, gpus: int) -> Iterator[Item]:
        """Yield the allocations of each of ``gpus`` ranks in a step; parameters are float32 in every compute dtype."""
        settings, width = self.config.trainer, self.width
        yield from self.trainer_state(gpus)
        if not self.offloaded:
            yield float32_item("gradients", 1, self.trained, gpus)
        yield from self.gathered(gpus)
        tokens = max(settings.micro_batch_tokens, self.sequence)
        rows = self.rows(tokens)
        patches = self.model.vision.merge**2 * self.image * rows * self.config.policy.max_images
        yield Item("screenshots", FLOAT32 * patches * self.model.vision.patch_values, f"4 B x {patches:,} patches")
        saved = f"{tokens:,} tokens, {patches:,} patches, {width} B"
        how = "recomputed" if settings.recompute else "kept"
        yield Item(f"activations, {how}", self.activations(tokens, patches), saved)
        yield self.attention_mask(tokens)
        yield from self.head(self.answer_tokens(gpus))
        yield Item("CUDA and fragmentation", CUDA_BYTES, "assumed")

    def gathered(self, gpus: int) -> Iterator[Item]:
        """Yield the parts of the model that a rank has whole: what is outside of layers, and two layers."""
        model, settings, width = self.model, self.config.trainer, self.width
        if settings.kl_beta and not self.offloaded:
            yield float32_item("reference model (trainer.kl_beta)", 1, model.parameters, gpus)
        adapters = self.adapters // model.text.layers
        roots = 2 if settings.kl_beta else 1
        gathered = width * (roots * model.root + 2 * (model.layer + adapters))
        yield Item("gathered parameters", gathered, f"{width} B x (embeddings and head, and two layers)")
        # Gradients are in the compute dtype, and are reduced in float32.
        largest = adapters or max(model.root, model.layer)
        yield Item(
            "gradients before they are reduced", (width + FLOAT32) * largest, f"({width} + 4) B x the largest part"
        )
        if self.offloaded:
            shards = FLOAT32 * (max(model.root, model.layer) + largest) / gpus
            yield Item("shards from and to main memory", shards, f"4 B x the largest part and its gradients / {gpus}")

    def trainer_state(self, gpus: int) -> list[Item]:
        """Return what each of ``gpus`` ranks keeps on its GPU from step to step."""
        return [] if self.offloaded else self.sharded_state(gpus)

    def sharded_state(self, gpus: int) -> list[Item]:
        """Return the share of parameters and optimizer state of each of ``gpus`` ranks."""
        moments = MOMENTS[self.config.trainer.optimizer]
        counted = f"{moments:.3g} B x {self.trained / 1e9:.3g} G parameters / {gpus}"
        return [
            float32_item("parameters", 1, self.model.parameters + self.adapters, gpus),
            Item("optimizer state (AdamW)", moments * self.trained / gpus, counted),
        ]

    def attention_mask(self, tokens: int) -> Item:
        """Return the masks of rows that share a prompt: booleans, and each layer's copy in the compute dtype."""
        answers = self.config.curation.budget.base * self.config.policy.max_tokens
        row = min(tokens, self.prompt + answers)
        layers = 1 if self.config.trainer.recompute else self.model.text.layers
        size = max(1, tokens // row) * row**2 * (1 + layers * self.width)
        return Item("attention mask", size, f"(1 + {layers} x {self.width}) B x ({row:,} tokens of a row)²")

    def publishing(self, gpus: int) -> float:
        """Return the peak of each rank while it publishes: it copies what it rounds or merges, and gathers a tensor.

        With ``trainer.offload`` these are in main memory, and the probe's pass remains.
        """
        if self.offloaded:
            return total_bytes(self.gathered(gpus)) + CUDA_BYTES
        rounded = 0 if self.config.trainer.publish.dtype == "float32" else self.model.parameters
        copied = self.merged if self.adapters else rounded
        reference = self.model.parameters if self.config.trainer.kl_beta else 0
        gathered = FLOAT32 * ((copied + reference) / gpus + self.model.largest_tensor)
        return total_bytes(self.trainer_state(gpus)) + gathered + CUDA_BYTES

    def loading(self, gpus: int) -> float:
        """Return the peak of each rank at its start: a whole float32 model, beside the share of one loaded before.

        Layers are sharded first. What is outside of them is copied last, beside the shares of all.
        """
        whole, kept = self.model.parameters + self.adapters, 0 if self.offloaded else 1 / gpus
        share = kept * self.model.parameters if self.config.trainer.kl_beta else 0
        return FLOAT32 * (max(whole, whole * kept + self.model.root) + share) + CUDA_BYTES

    def fits_trainer(self, gpu_gib: float, gpus: int) -> bool:
        """Return whether a trainer on ``gpus`` GPUs has memory at its start, in a step and while it publishes."""
        peaks = self.loading(gpus), self.publishing(gpus), total_bytes(self.trainer_step(gpus))
        return max(peaks) <= gpu_gib * GIB

    @property
    def served_bytes(self) -> int:
        """Bytes of the served weights on each rank; what ranks do not share, such as norms, is not counted twice."""
        return self.model.width * self.model.parameters // self.ranks

    def second_set(self, gpu_gib: float) -> SecondSetPlace:
        """Return where ``rollout.vllm.second_set`` puts the second set of weights on such a GPU."""
        return second_set_place(self.config.rollout.vllm.second_set, True, self.served_bytes, gpu_gib * GIB)

    def engine(self, second_set: bool = False) -> Iterator[Item]:
        """Yield the allocations of a rank of vLLM beside its cache.

        vLLM gets merged weights, so adapters take nothing. Embeddings and logits are whole on each rank.
        """
        text, vision, width, ranks = self.model.text, self.model.vision, self.model.width, self.ranks
        shared = f" / {ranks}" if ranks > 1 else ""
        yield Item("weights", self.served_bytes, f"{width} B x {self.model.parameters / 1e9:.2f} G parameters{shared}")
        if second_set:
            yield Item("second set of weights", self.served_bytes, "a switch is a copy between two steps")
        embedding = width * text.hidden * (1 + len(vision.deepstack))
        kept = encoder_capacity(self.config, self.image, embedding)
        yield Item("screenshot embeddings", kept * embedding, f"{embedding} B x {kept:,} tokens of requests in flight")
        batched = max(BATCHED_TOKENS, self.image * self.config.policy.max_images)
        of_text = 2 * text.hidden + (2 * text.intermediate + 3 * text.attention) / ranks
        of_vision = vision.merge**2 * (2 * vision.hidden + (2 * vision.intermediate + 4 * vision.hidden) / ranks)
        work = batched * width * max(of_text, of_vision)
        yield Item("activations", work, f"{batched:,} tokens of a step, estimated")
        requests = self.config.rollout.max_in_flight
        yield Item(
            "logits", 4 * FLOAT32 * requests * text.vocabulary, f"4 x 4 B x {requests} requests x the vocabulary"
        )
        yield Item("CUDA and graphs", CUDA_BYTES, "assumed")

    @property
    def cache_token(self) -> int:
        """Bytes of the key-value cache of one token on each rank, in all layers."""
        return 2 * self.model.text.layers * self.model.text.key_values * self.model.width // self.ranks

    def cache_blocks(self, gpu_gib: float, second_set: bool = False) -> int:
        """Return how many cache blocks fit on each of a worker's GPUs beside the engine."""
        room = UTILIZATION * gpu_gib * GIB - total_bytes(self.engine(second_set))
        return max(0, int(room // (CACHE_BLOCK * self.cache_token)))

    def requests(self, gpu_gib: float, second_set: bool = False) -> int:
        """Return how many requests of full length a rollout worker's cache holds."""
        return self.cache_blocks(gpu_gib, second_set) // -(-self.sequence // CACHE_BLOCK)

    def split(self, gpus: int, gpu_gib: float) -> Split | None:
        """Return the smallest trainer that fits, and whole rollout workers on the other GPUs; None if there is none."""
        requests = self.requests(gpu_gib, self.second_set(gpu_gib) == "device")
        counts = range(1, gpus - self.ranks + 1)
        trainer = next((count for count in counts if self.fits_trainer(gpu_gib, count)), None)
        if not trainer or not requests:
            return None
        return Split((gpus - trainer) // self.ranks * self.ranks, trainer, requests)

    def rollout_host(self, gpu_gib: float) -> Iterator[Item]:
        """Yield the main memory that a rollout worker keeps from version to version."""
        whole = self.published_item("weights that the next version is applied to")
        if self.config.trainer.publishes_parts:
            yield whole
        elif self.ranks > 1:
            yield msgspec.structs.replace(whole, what="weights that ranks read, during a switch")
        if self.lora.rank:
            yield msgspec.structs.replace(whole, what="frozen weights beside the merged ones")
        if self.second_set(gpu_gib) == "host":
            pinned = self.ranks * self.served_bytes
            yield Item("second set of weights, pinned", pinned, "copied to the GPUs in the switch")

    def trainer_host(self, gpus: int) -> Iterator[Item]:
        """Yield the main memory that rank 0 of ``gpus`` keeps from version to version, and offloaded state."""
        if self.config.trainer.publishes_parts:
            yield self.published_item("frozen weights" if self.lora.rank else "newest version, for the next delta")
        if self.offloaded:
            yield from self.sharded_state(gpus)
            yield float32_item("gradients", 1, self.trained, gpus)
            if self.config.trainer.kl_beta:
                yield float32_item("reference model (trainer.kl_beta)", 1, self.model.parameters, gpus)

    def published_item(self, what: str) -> Item:
        """Return a whole model in the published dtype."""
        width = FLOAT32 if self.config.trainer.publish.dtype == "float32" else 2
        parameters = self.model.parameters
        return Item(what, width * parameters, f"{width} B x {parameters / 1e9:.2f} G parameters")

    def advise(self, gpus: int, gpu_gib: float) -> str:
        """Return the fewest changes of keys that make the model fit, or the number of GPUs on which it does."""
        changed, keys = self, dict[str, object]()
        for tables in self.changes():
            replaced = {name: msgspec.structs.replace(getattr(changed.config, name), **tables[name]) for name in tables}
            changed = MemoryEstimate(self.model, msgspec.structs.replace(changed.config, **replaced))
            keys |= {f"{name}.{key}": value for name in tables for key, value in tables[name].items()}
            if changed.config != self.config and changed.split(gpus, gpu_gib) is not None:
                return f"set {self.changed_text(keys)}"
        enough = (count for count in range(gpus + 1, MAX_GPUS + 1) if changed.split(count, gpu_gib) is not None)
        if (count := next(enough, None)) is None:
            return f"no number of GPUs of {gpu_gib:g} GiB is enough: take larger ones, or a smaller model"
        others = f" (with {text})" if (text := self.changed_text(keys)) else ""
        return f"take {count} GPUs of {gpu_gib:g} GiB{others}, larger ones, or a smaller model"

    def changed_text(self, keys: Mapping[str, object]) -> str:
        """Return those of ``keys`` that differ from the configuration, as it writes them."""
        present = msgspec.to_builtins(self.config)
        differing = [
            f"{name} = {msgspec.json.encode(value).decode()}"
            for name, value in keys.items()
            if present[name.partition(".")[0]][name.partition(".")[2]] != value
        ]
        return " and ".join(filter(None, [", ".join(differing[:-1]), *differing[-1:]]))

    def changes(self) -> Iterator[dict[str, dict[str, object]]]:
        """Yield changes that save memory, each on top of those before: keys by table."""
        policy = self.config.policy
        pixels, images = policy.max_pixels // 2, max(1, policy.max_images // 2)
        smaller = msgspec.structs.replace(policy, max_pixels=pixels, max_images=images)
        row = MemoryEstimate(self.model, msgspec.structs.replace(self.config, policy=smaller)).sequence
        yield {"trainer": {"dtype": "bfloat16"}}
        yield {"trainer": {"recompute": True}}
        if not self.config.trainer.head_tokens:
            yield {"trainer": {"head_tokens": HEAD_TOKENS}}
        if self.rows(self.config.trainer.micro_batch_tokens) > 1:
            yield {"trainer": {"micro_batch_tokens": self.sequence}}
        if not self.adapters:
            yield {"trainer": {"optimizer": "adamw_8bit", "offload": "none"}}
        yield {"trainer": {"optimizer": "adamw", "offload": "all"}}
        yield {"policy": {"max_pixels": pixels, "max_images": images}, "trainer": {"micro_batch_tokens": row}}
        yield {"trainer": {"kl_beta": 0.0}}


def float32_item(what: str, copies: int, parameters: int, gpus: int) -> Item:
    """Return ``copies`` of float32 values for each parameter, sharded over ``gpus``."""
    width = copies * FLOAT32
    return Item(what, width * parameters / gpus, f"{width} B x {parameters / 1e9:.3g} G parameters / {gpus}")


def total_bytes(items: Iterable[Item]) -> float:
    """Return the sum of the items' sizes."""
    return sum(item.size for item in items)
