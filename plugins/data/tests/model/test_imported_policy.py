"""A tiny policy is built from demonstrations that were imported, on real services."""

import json
from pathlib import Path

from PIL import Image
from transformers import AutoModelForImageTextToText

from dart_data import demonstration_import, demonstrations
from dart_streams.config import tasks
from tests.model.test_policy_build import configured, players
from trainer.warmup import build


def test_imported_demonstrations_become_a_policy_without_an_oracle(services, tmp_path):
    config, file = configured(services, tmp_path)
    known = tasks.load(Path(config.tasks.file))
    Image.new("RGB", (224, 224), "red").save(tmp_path / "screen.png")
    line = {"instruction": "Click.", "steps": [{"image": "screen.png", "text": "Action: click(start_box='(3,4)')"}]}
    shown = [{**line, "task_id": task.task_id} for task in (*known.train, *known.demonstration)]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, shown)))
    with players(file):
        imported = demonstration_import.run(config, known, demonstrations.episodes_in(tmp_path / "set.jsonl"))
    assert imported.demonstrations == len(shown) == 14
    progress: list[tuple[int, int]] = []
    folder = tmp_path / "policy"
    build.build(config, known, folder, lambda count, step, _: progress.append((count, step)), imported=True)
    assert progress[-1] == (14, config.warmup.steps)
    AutoModelForImageTextToText.from_pretrained(folder)
