"""Where the project's sources are, for tests that read them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("topics", "dart_streams", "workers", "trainer")
