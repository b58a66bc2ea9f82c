"""The scripts that start a page's problem and read its state."""

from importlib.resources import files

SCRIPT = files("workers.env.backends.miniwob").joinpath("problem.js").read_text()
STATE = """(() => {
  if (typeof WOB_DONE_GLOBAL === 'undefined') return [false, 0];
  if (WOB_DONE_GLOBAL && core.cover_div) core.cover_div.style.display = 'none';
  // 0/0 is no number; JSON would have null in its place.
  return [Boolean(WOB_DONE_GLOBAL), Number.isFinite(WOB_RAW_REWARD_GLOBAL) ? WOB_RAW_REWARD_GLOBAL : 0];
})()"""
"""Whether a page's problem has ended, and its raw reward: 0 where it is no number (bisect-angle's at the vertex), and
where the episode has left the page."""


def in_problem(expression: str) -> str:
    """Return a script that yields an expression over the functions of problem.js."""
    return f"(() => {{ {SCRIPT}; return {expression}; }})()"
