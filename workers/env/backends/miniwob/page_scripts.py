"""Scripts that run in pages: they start a problem, read its state, and draw native windows of the browser."""

import json
from importlib.resources import files

FOLDER = files("workers.env.backends.miniwob") / "scripts"
PROBLEM = FOLDER.joinpath("problem.js").read_text(encoding="utf-8")
NATIVE_PARTS = ("popup.js", "pickers.js", "native.js", "rest.js", "clipboard.js")
PAGE = "window[Symbol.for('dart_streams.page')]"
DRAGS = f"{PAGE}?.drags()"
"""Yields, once after a move of the mouse, whether it has begun to drag a part of the page."""
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


def at_rest(state: str, draws: bool) -> str:
    """Return a script that waits for rest, and yields whether the page wants a frame, and an expression's value.

    ``draws`` says that the browser draws frames by itself.
    """
    return f"(async () => [await {PAGE}?.rest({json.dumps(draws)}), {state}])()"


def native_script(width: int, height: int) -> str:
    """Return the script of new documents: native windows, the clipboard, and what the page has still to do.

    Popups stay within the first ``width`` x ``height`` pixels of a page.
    """
    parts = [FOLDER.joinpath(part).read_text(encoding="utf-8") for part in NATIVE_PARTS]
    area = json.dumps({"width": width, "height": height})
    return "\n".join(["(() => {", f"const AREA = {area};", *parts, "})();"])
