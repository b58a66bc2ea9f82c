"""Verbs of ``dart-streams bench`` that start services or processes measure a small size, each in its environment."""

import json
import subprocess

import pytest

from tests.sources import ROOT

SMALL = {
    "agents": "streams --trajectories 300 --servers {servers}",
    "browser": "streams --rounds 1 --episodes 8 --warm-up 8",
    "tracing": "streams --rounds 2 --episodes 4",
    "trainer": "model --steps 5",
    "weights": "model --workers 1 --switches 2 --restarts 1 --slots 2 --window-s 3",
}


@pytest.mark.parametrize("verb", SMALL)
def test_a_verb_with_services_measures_a_small_size(services, verb: str):
    side, *options = SMALL[verb].format(servers=services.running.bus.servers).split()
    command = [ROOT / f".venv/{side}/bin/dart-streams", "bench", verb, *options, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert json.loads(done.stdout)
