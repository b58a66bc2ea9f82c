"""Policy on one core: the trainer's scorer, and sampling that computes each distinct prompt once.

Prompts are shared in groups and far longer than answers, so this saves most work. Shapes as in
``trainer.data.collate``; U distinct prompts, P tokens of the longest.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from dart_streams.policy.rendering import Prompt, Renderer
from topics.values import Sampling
from trainer.data.collate import ModelImage, pad_rows
from trainer.learning import vision
from trainer.learning.model import Scorer


class Prefix(NamedTuple):
    """Computed prompts: keys and values of each layer, and the last hidden state."""

    layers: list[tuple[Tensor, Tensor]]
    last_UD: Tensor
    mask_UP: Tensor
    next_position_U: Tensor


class Generation(NamedTuple):
    """A sampled answer with log-probability and entropy (nats) of each token."""

    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]


class PrefixScorer(Scorer):
    """Trainer's scorer that also computes prompts for sampling."""

    def prefix(self, ids_UP: Tensor, mask_UP: Tensor, images: Sequence[ModelImage], shown_S: Tensor) -> Prefix:
        """Compute prompts padded on the left; each image passes the vision tower once."""
        inputs = {name: torch.cat([image.inputs[name] for image in images]) for name in images[0].inputs}
        encoded = vision.encode(self.policy, inputs)
        is_image_UP = ids_UP == self.policy.config.image_token_id
        embedded_UPD = self.policy.get_input_embeddings()(ids_UP)
        if len(shown_S):
            counts_I = torch.tensor([image.tokens for image in images])
            shown_ND = vision.rows_of(vision.repeat_features(encoded, counts_I, shown_S).pooler_output)
            embedded_UPD = embedded_UPD.masked_scatter(is_image_UP.unsqueeze(-1), shown_ND)
        positions_3UP, next_UP = self.prompt_positions(ids_UP, is_image_UP.int(), mask_UP, inputs, shown_S)
        cache: Any = DynamicCache()
        hidden_UPD = self.policy.model.language_model(
            inputs_embeds=embedded_UPD,
            attention_mask=mask_UP,
            position_ids=positions_3UP,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        return Prefix(layers, hidden_UPD[:, -1], mask_UP, next_UP[:, -1])

    def continued(self, cache: DynamicCache, tokens_BA: Tensor, mask_BL: Tensor, position_B: Tensor) -> Tensor:
        """Return the last hidden states (B, A, D) of tokens appended to the cache."""
        positions_BA = position_B[:, None] + torch.arange(tokens_BA.shape[1])
        hidden: Tensor = self.policy.model.language_model(
            inputs_embeds=self.policy.get_input_embeddings()(tokens_BA),
            attention_mask=mask_BL,
            position_ids=positions_BA.expand(3, -1, -1),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden


def expand_cache(prefix: Prefix, index_B: Tensor) -> DynamicCache:
    """Return a cache with a row for each answer."""
    cache = DynamicCache()
    for number, (keys, values) in enumerate(prefix.layers):
        cache.update(keys[index_B], values[index_B], number)
    return cache


class Sampler:
    """Samples allowed tokens at a temperature until the end, as the engine does."""

    def __init__(self, scorer: PrefixScorer, renderer: Renderer, images: Callable[[str], ModelImage]) -> None:
        self.scorer = scorer
        self.renderer = renderer
        self.images = images

    @torch.no_grad()
    def answer(self, prompts: Sequence[Prompt], sampling: Sampling, generator: torch.Generator) -> list[Generation]:
        """Return an answer to each prompt; equal prompts are computed once."""
        distinct = list({prompt.sha: prompt for prompt in prompts}.values())
        place = {prompt.sha: number for number, prompt in enumerate(distinct)}
        prefix = self.prefix(distinct)
        index_B = torch.tensor([place[prompt.sha] for prompt in prompts])
        found = [Generation([], [], []) for _ in prompts]
        alive = list(range(len(prompts)))
        cache = expand_cache(prefix, index_B)
        hidden_BD, mask_BL = prefix.last_UD[index_B], prefix.mask_UP[index_B]
        position_B = prefix.next_position_U[index_B]
        for _ in range(sampling.max_tokens):
            tokens, logprobs, entropies = self.draw(
                self.scorer.policy.lm_head(hidden_BD), sampling.temperature, generator
            )
            for row, number in enumerate(alive):
                found[number].tokens.append(tokens[row])
                found[number].logprobs.append(logprobs[row])
                found[number].entropies.append(entropies[row])
            rows = [row for row, token in enumerate(tokens) if token != self.renderer.eos]
            if not rows:
                break
            alive = [alive[row] for row in rows]
            kept = torch.tensor(rows)
            cache.batch_select_indices(kept)
            mask_BL = torch.nn.functional.pad(mask_BL[kept], (0, 1), value=1)
            position_B = position_B[kept]
            drawn_B1 = torch.tensor([[tokens[row]] for row in rows])
            hidden_BD = self.scorer.continued(cache, drawn_B1, mask_BL, position_B)[:, -1]
            position_B = position_B + 1
        return found

    def prefix(self, prompts: Sequence[Prompt]) -> Prefix:
        """Compute prompts, and each of their images once."""
        order = list(dict.fromkeys(ref.sha256 for prompt in prompts for ref in prompt.images))
        images = {sha256: self.images(sha256) for sha256 in order}
        rows = [
            self.renderer.expanded(prompt.token_ids, [images[ref.sha256].size for ref in prompt.images])
            for prompt in prompts
        ]
        ids_UP, mask_UP = pad_rows(rows, self.renderer.pad, left=True)
        shown_S = torch.tensor([order.index(ref.sha256) for prompt in prompts for ref in prompt.images])
        return self.scorer.prefix(ids_UP, mask_UP, list(images.values()), shown_S)

    def draw(
        self, logits_BV: Tensor, temperature: float, generator: torch.Generator
    ) -> tuple[list[int], list[float], list[float]]:
        """Draw a token from each row; temperature 0 is greedy, with log-probabilities of temperature 1."""
        allowed_BV = (logits_BV.float() / (temperature or 1.0)).masked_fill(self.scorer.forbidden_V, -torch.inf)
        logp_BV = allowed_BV.log_softmax(-1)
        if temperature == 0.0:
            tokens_B = logp_BV.argmax(-1)
        else:
            tokens_B = torch.multinomial(logp_BV.exp(), 1, generator=generator)[:, 0]
        entropy_B = torch.special.entr(logp_BV.exp()).sum(-1)
        return tokens_B.tolist(), logp_BV.gather(-1, tokens_B[:, None])[:, 0].tolist(), entropy_B.tolist()
