"""Where the project's sources are, for tests that read them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ("topics", "dart_streams", "workers", "trainer", "console")
PLUGINS = tuple(sorted(str(file.parent.relative_to(ROOT)) for file in ROOT.glob("plugins/*/dart_*/__init__.py")))
PRODUCT = (*CORE, *PLUGINS)
TESTS = ("tests", *(f"{Path(folder).parent}/tests" for folder in PLUGINS))
