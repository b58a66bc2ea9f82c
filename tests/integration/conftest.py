"""Prints what the web page's tests have measured: times of its pages, and what a thousand slots cost."""

import time
from pathlib import Path

FIGURES = Path(__file__).parents[2] / ".dart" / "page-screenshots"
BEGUN_S = time.time()


def pytest_terminal_summary(terminalreporter) -> None:
    """Print the figures of this session."""
    for file in sorted(FIGURES.glob("*.txt")):
        if file.stat().st_mtime >= BEGUN_S:
            terminalreporter.write_line(f"{file.stem}: {file.read_text()}")
