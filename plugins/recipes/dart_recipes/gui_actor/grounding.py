"""A policy with the attention head: the places that it proposes on a screen, its training, and its files.

Works with models of the Qwen2.5-VL family. Shapes: B prompts, L tokens, M patches of the longest screen, N patches of
all, D width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dart_recipes.gui_actor.head import ActionHead, Verifier
from dart_recipes.gui_actor.patches import Grid, Point, choose_point, propose_points
from dart_streams.errors import UserError
from dart_streams.policy.rendering import Prompt, Renderer
from dart_streams.policy.weights import own_state, save
from trainer.data.collate import ModelImage, pad_rows
from trainer.learning import model, vision

FILE = "gui_actor.safetensors"
"""The weights of head and verifier, beside those of the policy."""
OPENING = "Action: click(start_box='("
"""Begins each answer; ``<ACTOR>`` follows in place of coordinates."""
ACCEPTED = 0.8
"""Probability from which the verifier looks no further."""


class Asked(NamedTuple):
    """A prompt with its images; the click is wanted on the last one."""

    prompt: Prompt
    images: Sequence[ModelImage]

    @property
    def grid(self) -> Grid:
        """The patches of the last image, as the language model sees them."""
        image = self.images[-1]
        _, high, wide = image.inputs["image_grid_thw"][0].tolist()
        merged = round((high * wide / image.tokens) ** 0.5)
        return Grid(wide // merged, high // merged, *image.size)


class Reading(NamedTuple):
    """The last hidden state of each prompt, and what the vision tower made of its last image, padded."""

    last_BD: Tensor
    patches_BMD: Tensor
    present_BM: Tensor


class HeadOutput(NamedTuple):
    """What the head makes of a reading: logits and patches in context, with the states of ``<ACTOR>``."""

    logits_BM: Tensor
    context_BMD: Tensor
    actor_BD: Tensor


class Grounder(nn.Module):
    """A policy, read token by token or with the attention head."""

    def __init__(self, folder: Path, renderer: Renderer) -> None:
        super().__init__()
        self.renderer = renderer
        self.scorer = model.load(folder, renderer, torch.device("cpu"))
        if not hasattr(self.policy.base_model, "language_model") or "qwen2_5_vl" not in self.policy.config.model_type:
            raise UserError(f"{folder} is no model of the Qwen2.5-VL family: the attention head needs one")
        embeddings = self.policy.get_input_embeddings().weight
        self.head = ActionHead(embeddings.shape[1], float(embeddings.detach().std()))
        self.verifier = Verifier(embeddings.shape[1])
        self.opening = renderer.answer_tokens(OPENING)[:-1]

    @property
    def policy(self) -> model.Any:
        """The Hugging Face model."""
        return self.scorer.policy

    def read(self, asked: Sequence[Asked], answers: Sequence[Sequence[int]], actor: bool = False) -> Reading:
        """Read prompts with the tokens of their answers so far, followed by ``<ACTOR>`` if wanted."""
        images = [image for each in asked for image in each.images]
        inputs = {name: torch.cat([image.inputs[name] for image in images]) for name in images[0].inputs}
        features_ND = vision.rows_of(vision.encode(self.policy, inputs).pooler_output)
        rows = [
            [*self.renderer.expanded(each.prompt.token_ids, [image.size for image in each.images]), *answer]
            for each, answer in zip(asked, answers, strict=True)
        ]
        pad = self.renderer.pad
        ids_BL, mask_BL = pad_rows([[*row, pad] if actor else row for row in rows], pad, left=True)
        is_image_BL = ids_BL == self.renderer.image_token
        embedded_BLD = self.policy.get_input_embeddings()(ids_BL)
        embedded_BLD = embedded_BLD.masked_scatter(is_image_BL.unsqueeze(-1), features_ND)
        if actor:
            token_B1D = self.head.actor_D.expand(len(rows), 1, -1)
            embedded_BLD = torch.cat([embedded_BLD[:, :-1], token_B1D], 1)
        shown = torch.arange(len(images))
        positions_3BL, _ = self.scorer.prompt_positions(ids_BL, is_image_BL.int(), mask_BL, inputs, shown)
        hidden_BLD = self.policy.base_model.language_model(
            inputs_embeds=embedded_BLD, attention_mask=mask_BL, position_ids=positions_3BL, use_cache=False
        ).last_hidden_state
        each_image = features_ND.split([image.tokens for image in images])
        ends = torch.tensor([len(each.images) for each in asked]).cumsum(0) - 1
        last = [each_image[end] for end in ends.tolist()]
        present = [torch.ones(len(patches), dtype=torch.bool) for patches in last]
        return Reading(hidden_BLD[:, -1], pad_sequence(last, batch_first=True), pad_sequence(present, batch_first=True))

    def attend(self, asked: Sequence[Asked]) -> HeadOutput:
        """Return the head's attention for the click that answers each prompt."""
        reading = self.read(asked, [self.opening] * len(asked), actor=True)
        logits_BM, context_BMD = self.head(reading.patches_BMD, reading.present_BM, reading.last_BD)
        return HeadOutput(logits_BM, context_BMD, reading.last_BD)

    def verify(self, asked: Sequence[Asked], attention: HeadOutput, points: Sequence[Point]) -> Tensor:
        """Return the verifier's logits (B) of one point a prompt."""
        patch_B = torch.tensor([each.grid.patch_at(point) for each, point in zip(asked, points, strict=True)])
        places = [place_of(each.grid, point) for each, point in zip(asked, points, strict=True)]
        context_BD = attention.context_BMD[torch.arange(len(asked)), patch_B]
        logits_B: Tensor = self.verifier(attention.actor_BD, context_BD, torch.tensor(places))
        return logits_B

    @torch.no_grad()
    def locate(self, asked: Sequence[Asked], verified: bool = True) -> list[Point]:
        """Return the click on each prompt's last image: of the best region, or the one that the verifier chooses."""
        attention = self.attend(asked)
        found = []
        for number, each in enumerate(asked):
            weights = attention.logits_BM[number].softmax(-1)[: each.images[-1].tokens].tolist()
            points = propose_points(each.grid, weights)
            alone = HeadOutput(*(part[number : number + 1] for part in attention))

            def probability(point: Point, each: Asked = each, alone: HeadOutput = alone) -> float:
                return self.verify([each], alone, [point]).sigmoid().item()

            found.append(choose_point(points, probability, ACCEPTED) if verified else points[0])
        return found

    @torch.no_grad()
    def answer(self, asked: Sequence[Asked], most: int) -> list[str]:
        """Return the text that the policy writes, greedily, of at most ``most`` tokens."""
        answers: list[list[int]] = [[] for _ in asked]
        for _ in range(most):
            logits_BV = self.policy.get_output_embeddings()(self.read(asked, answers).last_BD)
            drawn = logits_BV.masked_fill(self.scorer.forbidden_V, -torch.inf).argmax(-1).tolist()
            for tokens, token in zip(answers, drawn, strict=True):
                tokens.append(token)
            if all(self.renderer.eos in tokens for tokens in answers):
                break
        return [self.renderer.text(self.until_end(tokens)) for tokens in answers]

    def until_end(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens before the end of the answer."""
        return list(tokens[: tokens.index(self.renderer.eos)] if self.renderer.eos in tokens else tokens)

    def save(self, folder: Path) -> None:
        """Write the weights into the policy's folder."""
        save(own_state(self.policy), str(folder))
        parts = {"head": self.head, "verifier": self.verifier}
        state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
        save_file(state, folder / FILE)

    def load_heads(self, folder: Path) -> None:
        """Read head and verifier; raise :class:`UserError` unless the folder has them."""
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}: write one with `measure --save`")
        state = load_file(folder / FILE)
        for name, part in (("head", self.head), ("verifier", self.verifier)):
            part.load_state_dict({key[len(name) + 1 :]: of for key, of in state.items() if key.startswith(f"{name}.")})


def place_of(grid: Grid, point: Point) -> list[float]:
    """Return a point's place on the screen and relative to the center of its patch, -1 to 1 each."""
    center = grid.center(grid.patch_at(point))
    sizes = (grid.width, grid.height)
    cells = (grid.width / grid.columns, grid.height / grid.rows)
    on_screen = [2 * value / size - 1 for value, size in zip(point, sizes, strict=True)]
    return on_screen + [2 * (value - middle) / cell for value, middle, cell in zip(point, center, cells, strict=True)]
