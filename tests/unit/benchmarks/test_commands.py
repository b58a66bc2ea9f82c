"""The commands of ``dart-streams bench``."""

import ast
import subprocess
import sys


def test_commands_start_without_their_benchmarks():
    code = "import sys, benchmarks.commands; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name for name in ast.literal_eval(done.stdout) if name.startswith("benchmarks.")}
    packages = {"benchmarks.feedback", "benchmarks.learning", "benchmarks.multi_turn", "benchmarks.peers"}
    assert {name for name in loaded - packages if "command" not in name} == set()
