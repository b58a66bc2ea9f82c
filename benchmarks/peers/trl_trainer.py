"""Trains the tiny policy with TRL's GRPOTrainer, in ``.venv/trl``: ``trl_trainer.py SETTINGS`` (JSON).

Screens are taken before the clock starts; a page server plays the actions. Evaluations stop the clock and print a JSON
line each, as does the end.
"""

import base64
import io
import json
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pictures
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

CONTENT = List({"type": Value("string"), "text": Value("string")})
FEATURES = Features(
    {
        "prompt": List({"role": Value("string"), "content": CONTENT}),
        "image": Image(),
        "page": Value("string"),
        "seed": Value("int64"),
    }
)
EVALUATION_BATCH = 100


@dataclass(frozen=True)
class Settings:
    """Settings of a training run."""

    model: str
    socket: str
    system: str
    train: list[tuple[str, int]]
    heldout: list[tuple[str, int]]
    seconds: float
    every_s: float
    """Seconds of training between evaluations."""
    groups: int
    group_size: int
    learning_rate: float
    clip_low: float
    clip_high: float
    grad_clip: float
    temperature: float
    max_tokens: int
    min_pixels: int
    max_pixels: int
    threads: int
    seed: int


class Pages:
    """Client of the page server."""

    def __init__(self, path: str) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(path)
        self.lines = self.connection.makefile("r")
        self.waited_s = 0.0

    def screens(self, tasks: list[tuple[str, int]]) -> list[dict[str, str]]:
        """Return instruction and screen of each task."""
        return self._ask({"screens": tasks})["screens"]

    def rewards(self, answers: list[tuple[str, int, str]]) -> list[float]:
        """Return the rewards of answers."""
        return self._ask({"answers": answers})["rewards"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise ConnectionError("the page server closed the connection: see its output")
        answer = json.loads(line)
        self.waited_s += time.perf_counter() - started
        return answer


def build_dataset(pages: Pages, tasks: list[tuple[str, int]], system: str) -> Dataset:
    """Return the prompts of tasks as this project's policy sees them."""
    rows = []
    for (page, seed), shown in zip(tasks, pages.screens(tasks), strict=True):
        user = [{"type": "text", "text": shown["instruction"]}, {"type": "image", "text": None}]
        prompt = [
            {"role": "system", "content": [{"type": "text", "text": system}]},
            {"role": "user", "content": user},
        ]
        picture = Pictures.open(io.BytesIO(base64.b64decode(shown["png"]))).convert("RGB")
        rows.append({"prompt": prompt, "image": picture, "page": page, "seed": seed})
    return Dataset.from_list(rows, features=FEATURES)


class Clock(TrainerCallback):
    """Evaluates before the first step and periodically, and ends training; neither counts as training time."""

    def __init__(self, settings: Settings, pages: Pages, heldout: Dataset) -> None:
        self.settings = settings
        self.pages = pages
        self.heldout = heldout
        self.trainer: Any = None
        self.trained_s = 0.0
        self.resumed = 0.0
        self.due_s = settings.every_s
        self.points: list[dict[str, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate the initial policy."""
        self.measure(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate when due, and end training when its time is over."""
        trained = self.trained_s + time.perf_counter() - self.resumed
        if trained >= self.settings.seconds or trained >= self.due_s:
            self.trained_s = trained
            self.due_s += self.settings.every_s
            self.measure(state.global_step)
        control.should_training_stop = trained >= self.settings.seconds

    def measure(self, step: int) -> None:
        """Record the held-out success rate, one sampled episode a task."""
        waited = self.pages.waited_s
        rewards = evaluate(self.trainer, self.pages, self.heldout, self.settings)
        self.pages.waited_s = waited
        episodes = step * self.settings.groups * self.settings.group_size
        success = sum(reward >= 0.999 for reward in rewards) / len(rewards)
        point = {"train_s": round(self.trained_s, 1), "steps": step, "episodes": episodes, "success": success}
        self.points.append(point)
        print_json(point)
        self.resumed = time.perf_counter()


@torch.no_grad()
def evaluate(trainer: Any, pages: Pages, heldout: Dataset, settings: Settings) -> list[float]:
    """Return the reward of one sampled answer to each held-out task."""
    model, processor = trainer.model, trainer.processing_class
    model.eval()
    answers = []
    for start in range(0, len(heldout), EVALUATION_BATCH):
        rows = [heldout[index] for index in range(start, min(start + EVALUATION_BATCH, len(heldout)))]
        texts = [processor.apply_chat_template(row["prompt"], add_generation_prompt=True) for row in rows]
        inputs = processor(text=texts, images=[[row["image"]] for row in rows], padding=True, return_tensors="pt")
        made = model.generate(**inputs, generation_config=trainer.generation_config)
        reported = processor.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        answers += [(row["page"], row["seed"], text) for row, text in zip(rows, reported, strict=True)]
    model.train()
    return pages.rewards(answers)


def print_json(found: dict[str, Any]) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def grpo_config(settings: Settings, processor: Any) -> GRPOConfig:
    """Return the trainer's settings, the demonstration's where both have them."""
    tokenizer = processor.tokenizer
    return GRPOConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        seed=settings.seed,
        max_steps=1_000_000,
        per_device_train_batch_size=settings.groups * settings.group_size,
        num_generations=settings.group_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=settings.grad_clip,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        temperature=settings.temperature,
        max_completion_length=settings.max_tokens,
        generation_kwargs={"suppress_tokens": sorted(set(tokenizer.all_special_ids) - {tokenizer.eos_token_id})},
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=20,
        report_to="none",
        disable_tqdm=True,
    )


def main(file: str) -> None:
    """Train and report."""
    with open(file, encoding="utf-8") as read:  # noqa: PTH123
        settings = Settings(**json.load(read))
    torch.set_num_threads(settings.threads)
    set_seed(settings.seed)
    pages = Pages(settings.socket)
    processor = AutoProcessor.from_pretrained(
        settings.model, min_pixels=settings.min_pixels, max_pixels=settings.max_pixels, padding_side="left"
    )

    def reward(completions: list[Any], page: list[str], seed: list[int], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return pages.rewards(list(zip(page, seed, texts, strict=True)))

    clock = Clock(settings, pages, build_dataset(pages, settings.heldout, settings.system))
    trainer = GRPOTrainer(
        model=Qwen2_5_VLForConditionalGeneration.from_pretrained(settings.model, dtype=torch.float32),
        reward_funcs=reward,
        args=grpo_config(settings, processor),
        train_dataset=build_dataset(pages, settings.train, settings.system),
        processing_class=processor,
        callbacks=[clock],
    )
    clock.trainer = trainer
    pages.waited_s = 0.0
    trainer.train()
    print_json({"points": clock.points, "waited_for_pages_s": round(pages.waited_s, 1)})


if __name__ == "__main__":
    main(*sys.argv[1:])
