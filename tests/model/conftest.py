"""Before a test imports torch: half-precision layers must not end the whole test run on a CPU with unusable AMX."""

from pathlib import Path

from dart_streams.policy import cpu_features

cpu_features.limit_isa("bfloat16", Path(__file__).parents[2] / ".dart")
