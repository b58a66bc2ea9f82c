"""Scripts that run in pages: they start a problem, read its state, and draw native windows of the browser."""

import json
from importlib.resources import files

FOLDER = files("workers.env.backends.miniwob")
PROBLEM = FOLDER.joinpath("problem.js").read_text()
NATIVE_PARTS = ("popup.js", "pickers.js", "native.js")
STATE = """(() => {
  if (typeof WOB_DONE_GLOBAL === 'undefined') return [false, 0];
  if (WOB_DONE_GLOBAL && core.cover_div) core.cover_div.style.display = 'none';
  // 0/0 is no number; JSON would have null in its place.
  return [Boolean(WOB_DONE_GLOBAL), Number.isFinite(WOB_RAW_REWARD_GLOBAL) ? WOB_RAW_REWARD_GLOBAL : 0];
})()"""
"""Yields whether the problem has ended, and its raw reward. The reward is 0 where it is no number (bisect-angle at the
vertex), and after the episode has left the page."""


def in_problem(expression: str) -> str:
    """Return a script that yields an expression over the functions of problem.js."""
    return f"(() => {{ {PROBLEM}; return {expression}; }})()"


def native_script(width: int, height: int) -> str:
    """Return the script that draws Chromium's native windows in new documents.

    Popups stay within the first ``width`` x ``height`` pixels of a page.
    """
    parts = [FOLDER.joinpath(part).read_text() for part in NATIVE_PARTS]
    area = json.dumps({"width": width, "height": height})
    return "\n".join(["(() => {", f"const AREA = {area};", *parts, "})();"])
