"""The published prompts of UI-TARS-1.5, verbatim (Apache License 2.0).

``point`` is ``COMPUTER_USE_DOUBAO`` of the package ``ui-tars`` 0.5.1, and ``mobile`` its ``MOBILE_USE_DOUBAO``; ``box``
is the prompt of the authors' OSWorld agent (``mm_agents/uitars15_v1.py``, ``qwen25vl_normal``).
"""

from typing import Literal

Style = Literal["point", "box", "mobile"]

SYSTEM = "You are a helpful assistant."

TASK = (
    "You are a GUI agent. You are given a task and your action history, with screenshots. "
    "You need to perform the next action to complete the task."
)
FORMAT = ("## Output Format", "```", "Thought: ...", "Action: ...", "```", "")
ESCAPES = (
    r"Use escape characters \', \", and \n in content part to ensure we can parse the content in normal python string "
    "format."
)
WAIT = "wait() #Sleep for 5s and take a screenshot to check for any changes."
FINISHED = f"finished(content='xxx') # {ESCAPES}"
TYPE = r"""type(content='') #If you want to submit your input, use "\n" at the end of `content`."""
BOX = "<|box_start|>(x1,y1)<|box_end|>"
END = (
    "## Note",
    "- Use {language} in `Thought` part.",
    "- Write a small plan and finally summarize your next action (with its target element) in one sentence in "
    "`Thought` part.",
    "",
    "## User Instruction",
    "{instruction}",
    "",
)
POINT_LINES = (
    TASK,
    "",
    *FORMAT,
    "## Action Space",
    "",
    "click(point='<point>x1 y1</point>')",
    "left_double(point='<point>x1 y1</point>')",
    "right_single(point='<point>x1 y1</point>')",
    "drag(start_point='<point>x1 y1</point>', end_point='<point>x2 y2</point>')",
    "hotkey(key='ctrl c') # Split keys with a space and use lowercase. Also, do not use more than 3 keys in one hotkey "
    "action.",
    rf"type(content='xxx') # {ESCAPES} If you want to submit your input, use \n at the end of content. ",
    "scroll(point='<point>x1 y1</point>', direction='down or up or right or left') # Show more information on the "
    "`direction` side.",
    WAIT,
    FINISHED,
    "",
    "",
    *END,
)
BOX_LINES = (
    TASK + " ",
    "",
    *FORMAT,
    "## Action Space",
    "",
    f"click(start_box='{BOX}')",
    f"left_double(start_box='{BOX}')",
    f"right_single(start_box='{BOX}')",
    f"drag(start_box='{BOX}', end_box='<|box_start|>(x3,y3)<|box_end|>')",
    "hotkey(key='')",
    TYPE,
    f"scroll(start_box='{BOX}', direction='down or up or right or left')",
    WAIT,
    FINISHED,
    "",
    "",
    *END,
)
MOBILE_LINES = (
    TASK + " ",
    *FORMAT[:-1],
    "## Action Space",
    "",
    "click(point='<point>x1 y1</point>')",
    "long_press(point='<point>x1 y1</point>')",
    TYPE,
    "scroll(point='<point>x1 y1</point>', direction='down or up or right or left')",
    "open_app(app_name='')",
    "drag(start_point='<point>x1 y1</point>', end_point='<point>x2 y2</point>')",
    "press_home()",
    "press_back()",
    FINISHED,
    "",
    "",
    *END,
)
FUNCTIONS = """call(name='xxx', arguments='{{}}') # Call a function with a JSON object of arguments. The functions are:
{functions}

## Note"""
TEMPLATES = {"point": "\n".join(POINT_LINES), "box": "\n".join(BOX_LINES), "mobile": "\n".join(MOBILE_LINES)}


def user_prompt(style: Style, language: str, instruction: str, functions: str = "") -> str:
    """Return the prompt for an instruction, with thoughts in ``language`` and a list of offered ``functions``."""
    before, after = TEMPLATES[style].split("{instruction}")
    before = before.replace("{language}", language)
    if functions:
        space, _, end = before.partition(f"\n\n{END[0]}")
        before = f"{space.rstrip()}\n{FUNCTIONS.format(functions=functions)}{end}"
    return before + instruction + after
