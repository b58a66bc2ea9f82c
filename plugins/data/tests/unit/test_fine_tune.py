"""``dart-streams train --sft`` refuses what it can't do before it reads the data."""

from dart_streams.errors import UserError
from tests.command_line import invoke


def test_fine_tuning_on_several_nodes_is_refused(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('trainer.nodes = 2\ntrainer.rendezvous = "node-0:29400"\n')
    result = invoke("train", "--config", str(file), "--sft", "data.jsonl", "--output", str(tmp_path / "model"))
    assert isinstance(result.exception, UserError)
    for part in ("--sft", "one node", "trainer.nodes = 2", "trainer.rendezvous"):
        assert part in str(result.exception)
