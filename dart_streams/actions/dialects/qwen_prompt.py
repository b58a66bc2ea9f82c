"""The system prompt of the Qwen-VL models for their tool ``computer_use``.

The tool as the models' cookbooks define it (``cookbooks/utils/agent_function_call.py`` of QwenLM/Qwen3-VL, Apache
License 2.0), within the text by which ``qwen-agent`` describes tools.
"""

import functools
import json
from typing import Any

from topics.values import OfferedCall

ASSISTANT = "You are a helpful assistant."
DESCRIPTION = "\n".join(
    (
        "Use a mouse and keyboard to interact with a computer, and take screenshots.",
        "* This is an interface to a desktop GUI. You do not have access to a terminal or applications menu. You must "
        "click on desktop icons to start applications.",
        "* Some applications may take time to start or process actions, so you may need to wait and take successive "
        "screenshots to see the results of your actions. E.g. if you click on Firefox and a window doesn't open, try "
        "wait and taking another screenshot.",
        "* The screen's resolution is {width}x{height}.",
        "* Whenever you intend to move the cursor to click on an element like an icon, you should consult a "
        "screenshot to determine the coordinates of the element before moving the cursor.",
        "* If you tried clicking on a program or link but it failed to load, even after waiting, try adjusting your "
        "cursor position so that the tip of the cursor visually falls on the element that you want to click.",
        "* Make sure to click any buttons, links, icons, etc with the cursor tip in the center of the element. Don't "
        "click boxes on their edges.",
    )
)
ACTIONS = {
    "key": "Performs key down presses on the arguments passed in order, then performs key releases in reverse order.",
    "type": "Type a string of text on the keyboard.",
    "mouse_move": "Move the cursor to a specified (x, y) pixel coordinate on the screen.",
    "left_click": "Click the left mouse button at a specified (x, y) pixel coordinate on the screen.",
    "left_click_drag": "Click and drag the cursor to a specified (x, y) pixel coordinate on the screen.",
    "right_click": "Click the right mouse button at a specified (x, y) pixel coordinate on the screen.",
    "middle_click": "Click the middle mouse button at a specified (x, y) pixel coordinate on the screen.",
    "double_click": "Double-click the left mouse button at a specified (x, y) pixel coordinate on the screen.",
    "triple_click": "Triple-click the left mouse button at a specified (x, y) pixel coordinate on the screen "
    "(simulated as double-click since it's the closest action).",
    "scroll": "Performs a scroll of the mouse scroll wheel.",
    "hscroll": "Performs a horizontal scroll (mapped to regular scroll).",
    "wait": "Wait specified seconds for the change to happen.",
    "terminate": "Terminate the current task and report its completion status.",
    "answer": "Answer a question.",
}
PARAMETERS = {
    "properties": {
        "action": {
            "description": "The action to perform. The available actions are:\n"
            + "\n".join(f"* `{name}`: {meaning}" for name, meaning in ACTIONS.items()),
            "enum": list(ACTIONS),
            "type": "string",
        },
        "keys": {"description": "Required only by `action=key`.", "type": "array"},
        "text": {"description": "Required only by `action=type` and `action=answer`.", "type": "string"},
        "coordinate": {
            "description": "(x, y): The x (pixels from the left edge) and y (pixels from the top edge) coordinates to "
            "move the mouse to.",
            "type": "array",
        },
        "pixels": {
            "description": "The amount of scrolling to perform. Positive values scroll up, negative values scroll "
            "down. Required only by `action=scroll` and `action=hscroll`.",
            "type": "number",
        },
        "time": {"description": "The seconds to wait. Required only by `action=wait`.", "type": "number"},
        "status": {
            "description": "The status of the task. Required only by `action=terminate`.",
            "type": "string",
            "enum": ["success", "failure"],
        },
    },
    "required": ["action"],
    "type": "object",
}
TOOLS = """{assistant}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tool}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@functools.lru_cache(maxsize=64)
def system_prompt(width: int, height: int, offered: tuple[OfferedCall, ...] = ()) -> str:
    """Return the prompt for a screen of ``width`` by ``height``, in the units of the answer's coordinates."""
    function = {
        "name": "computer_use",
        "description": DESCRIPTION.format(width=width, height=height),
        "parameters": PARAMETERS,
    }
    functions = [function, *map(function_of, offered)]
    tools = (json.dumps({"type": "function", "function": one}, ensure_ascii=False) for one in functions)
    return TOOLS.format(assistant=ASSISTANT, tool="\n".join(tools))


def function_of(offered: OfferedCall) -> dict[str, Any]:
    """Return the signature of an offered function."""
    parameters = json.loads(offered.parameters)
    return {"name": offered.name, "description": offered.description, "parameters": parameters}
