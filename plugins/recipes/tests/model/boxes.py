"""Screens with one box, of which a tiny policy learns to click the middle within a minute."""

import hashlib
import io
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from PIL import Image, ImageDraw
from transformers import AutoModelForImageTextToText

from dart_streams.policy.rendering import Renderer
from tests import events
from topics.values import BlobRef, MessagePart, VersionSpan
from trainer.data.collate import Collator
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.learning.learner import Learner

SIDE = 56
MIDDLES = ((14, 14), (42, 14), (14, 42), (42, 42))
MOST_TOKENS = 6


def draw_box(rng: random.Random, middle: tuple[int, int]) -> bytes:
    """Return a screen whose box has this middle, and any dark color."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    x, y = middle
    color = tuple(rng.randrange(160) for _ in range(3))
    ImageDraw.Draw(image).rectangle((x - 10, y - 10, x + 10, y + 10), fill=color)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def solved(renderer: Renderer, seed: int, count: int) -> ReadyGroup:
    """Return ``count`` screens with the right answers."""
    rng = random.Random(seed)
    samples, images = [], {}
    for number in range(count):
        middle = rng.choice(MIDDLES)
        data = draw_box(rng, middle)
        ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=SIDE, height=SIDE)
        images[ref.sha256] = data
        prompt = renderer.prompt([MessagePart(role="user", text="Click"), MessagePart(role="user", image=ref)])
        answer = renderer.answer_tokens(f"Action: click(start_box='({middle[0]},{middle[1]})')")
        name = f"t{seed}-{number}"
        samples.append(TrainingSample(prompt=prompt.token_ids, images=[ref], answer=answer, trajectory_id=name))
    group = events.curated_group(f"g{seed}")
    return ReadyGroup(group=group, samples=samples, images=images, refused=Counter(), read_ms=0.0)


def answers_of(
    folder: Path, learner: Learner, renderer: Renderer, group: ReadyGroup, *, greedy: bool = False
) -> list[list[int]]:
    """Return the answers of a learner's weights to a group's screens, by plain transformers."""
    plain = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    plain.load_state_dict(dict(learner.weights()), strict=False)
    shown = [Image.open(io.BytesIO(group.images[item.images[0].sha256])).convert("RGB") for item in group.samples]
    ids = torch.tensor([renderer.expanded(item.prompt, [(SIDE, SIDE)]) for item in group.samples])
    types = (ids == renderer.image_token).int()
    drawn = {} if greedy else {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
    made = plain.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=types,
        **renderer.pixels(shown),
        **drawn,
        do_sample=not greedy,
        max_new_tokens=MOST_TOKENS,
        eos_token_id=renderer.eos,
        pad_token_id=renderer.pad,
        suppress_tokens=renderer.banned_tokens,
    )
    rows = made[:, ids.shape[1] :].tolist()
    return [row[: row.index(renderer.eos) + 1] if renderer.eos in row else row for row in rows]


def success_rate(folder: Path, learner: Learner, renderer: Renderer, seed: int = 99, count: int = 64) -> float:
    """Return the share of held-out screens whose greedy answer is right."""
    group = solved(renderer, seed, count)
    made = answers_of(folder, learner, renderer, group, greedy=True)
    return sum(answer == item.answer for answer, item in zip(made, group.samples, strict=True)) / count


def played(folder: Path, learner: Learner, renderer: Renderer, seed: int, count: int) -> ReadyGroup:
    """Return a group of sampled answers, without advantages; the log-probabilities are the learner's own."""
    group = solved(renderer, seed, count)
    torch.manual_seed(seed)
    made = answers_of(folder, learner, renderer, group)
    drawn = [
        msgspec.structs.replace(item, answer=answer, versions=[VersionSpan(version=0, start=0, end=len(answer))])
        for item, answer in zip(group.samples, made, strict=True)
    ]
    group = msgspec.structs.replace(group, samples=drawn)
    own = logprobs_of(learner, renderer, group)
    scored = [msgspec.structs.replace(item, logprobs=logp) for item, logp in zip(drawn, own, strict=True)]
    return msgspec.structs.replace(group, samples=scored)


def logprobs_of(learner: Learner, renderer: Renderer, group: ReadyGroup) -> list[list[float]]:
    """Return a learner's log-probabilities of each answer (nats)."""
    batch = Collator(renderer).collate(group.samples, group.images)
    with torch.no_grad():
        logp_BA, _ = learner.scorer(batch)
    rows = zip(batch.places, logp_BA, batch.present_BA, strict=True)
    found = {name: logp_A[present_A] for (name, _), logp_A, present_A in rows}
    return [found[item.trajectory_id].tolist() for item in group.samples]


def mean_gap(samples: Sequence[TrainingSample], others: Sequence[Sequence[float]]) -> float:
    """Return the mean of own less other log-probability a token: the reverse KL, estimated from own samples (nats)."""
    pairs = ((item.logprobs or (), of) for item, of in zip(samples, others, strict=True))
    gaps = [mine - theirs for own, of in pairs for mine, theirs in zip(own, of, strict=True)]
    return sum(gaps) / len(gaps)
