"""The scripts that start a page's problem and read its state."""

from importlib.resources import files

SCRIPT = files("workers.env.miniwob").joinpath("problem.js").read_text()
STATE = """(() => {
  if (WOB_DONE_GLOBAL && core.cover_div) core.cover_div.style.display = 'none';
  // 0/0, bisect-angle's for a point at the vertex, is no number; JSON would have null in its place.
  return [WOB_DONE_GLOBAL, Number.isFinite(WOB_RAW_REWARD_GLOBAL) ? WOB_RAW_REWARD_GLOBAL : 0];
})()"""


def in_problem(expression: str) -> str:
    """Return a script that yields an expression over the functions of problem.js."""
    return f"(() => {{ {SCRIPT}; return {expression}; }})()"
