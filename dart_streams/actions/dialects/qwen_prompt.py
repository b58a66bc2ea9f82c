"""The system prompt of the Qwen-VL models for their tools ``computer_use`` and ``mobile_use``.

The tools as the models' cookbooks define them (``cookbooks/utils/agent_function_call.py`` of QwenLM/Qwen3-VL, Apache
License 2.0), within the text by which ``qwen-agent`` describes tools. ``mobile_use`` has ``answer`` too, as in the
prompts of their later mobile agents.
"""

import functools
import json
from typing import Any, NamedTuple

from topics.values import OfferedCall

ASSISTANT = "You are a helpful assistant."
COMPUTER_DESCRIPTION = "\n".join(
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
COMPUTER_ACTIONS = {
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
COMPUTER_FIELDS = {
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
}
MOBILE_DESCRIPTION = "\n".join(
    (
        "Use a touchscreen to interact with a mobile device, and take screenshots.",
        "* This is an interface to a mobile device with touchscreen. You can perform actions like clicking, typing, "
        "swiping, etc.",
        "* Some applications may take time to start or process actions, so you may need to wait and take successive "
        "screenshots to see the results of your actions.",
        "* The screen's resolution is {width}x{height}.",
        "* Make sure to click any buttons, links, icons, etc with the cursor tip in the center of the element. Don't "
        "click boxes on their edges unless asked.",
    )
)
MOBILE_ACTIONS = {
    "key": "Perform a key event on the mobile device.\n    - This supports adb's `keyevent` syntax.\n"
    '    - Examples: "volume_up", "volume_down", "power", "camera", "clear".',
    "click": "Click the point on the screen with coordinate (x, y).",
    "long_press": "Press the point on the screen with coordinate (x, y) for specified seconds.",
    "swipe": "Swipe from the starting point with coordinate (x, y) to the end point with coordinates2 (x2, y2).",
    "type": "Input the specified text into the activated input box.",
    "system_button": "Press the system button.",
    "open": "Open an app on the device.",
    "wait": "Wait specified seconds for the change to happen.",
    "answer": "Terminate the current task and output the answer.",
    "terminate": "Terminate the current task and report its completion status.",
}
TOUCHED = (
    "(x, y): The x (pixels from the left edge) and y (pixels from the top edge) coordinates to move the mouse to. "
    "Required only by "
)
MOBILE_FIELDS = {
    "coordinate": {
        "description": f"{TOUCHED}`action=click`, `action=long_press`, and `action=swipe`.",
        "type": "array",
    },
    "coordinate2": {"description": f"{TOUCHED}`action=swipe`.", "type": "array"},
    "text": {
        "description": "Required only by `action=key`, `action=type`, `action=open`, `action=answer`.",
        "type": "string",
    },
    "time": {
        "description": "The seconds to wait. Required only by `action=long_press` and `action=wait`.",
        "type": "number",
    },
    "button": {
        "description": "Back means returning to the previous interface, Home means returning to the desktop, Menu "
        "means opening the application background menu, and Enter means pressing the enter. Required only by "
        "`action=system_button`",
        "enum": ["Back", "Home", "Menu", "Enter"],
        "type": "string",
    },
    "status": COMPUTER_FIELDS["status"],
}


class Tool(NamedTuple):
    """A tool: its actions with their meaning, and its other fields with their JSON schema.

    ``functions`` of an environment have an action of the tool, and are not listed beside it.
    """

    name: str
    description: str
    actions: dict[str, str]
    others: dict[str, Any]
    functions: frozenset[str] = frozenset()

    @property
    def fields(self) -> set[str]:
        """All fields of a call."""
        return {"action", *self.others}

    def signature(self, width: int, height: int) -> dict[str, Any]:
        """Return the tool as the prompt describes it."""
        listed = "\n".join(f"* `{name}`: {meaning}" for name, meaning in self.actions.items())
        action = {
            "description": f"The action to perform. The available actions are:\n{listed}",
            "enum": list(self.actions),
            "type": "string",
        }
        return {
            "name": self.name,
            "description": self.description.format(width=width, height=height),
            "parameters": {"properties": {"action": action, **self.others}, "required": ["action"], "type": "object"},
        }


COMPUTER_USE = Tool("computer_use", COMPUTER_DESCRIPTION, COMPUTER_ACTIONS, COMPUTER_FIELDS)
MOBILE_USE = Tool("mobile_use", MOBILE_DESCRIPTION, MOBILE_ACTIONS, MOBILE_FIELDS, frozenset({"open_app"}))
BY_NAME = {tool.name: tool for tool in (COMPUTER_USE, MOBILE_USE)}
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
def system_prompt(tool: str, width: int, height: int, offered: tuple[OfferedCall, ...] = ()) -> str:
    """Return the prompt of a tool for a screen of this size, in the units of the answer's coordinates."""
    functions = [BY_NAME[tool].signature(width, height), *map(function_of, offered)]
    tools = (json.dumps({"type": "function", "function": one}, ensure_ascii=False) for one in functions)
    return TOOLS.format(assistant=ASSISTANT, tool="\n".join(tools))


def function_of(offered: OfferedCall) -> dict[str, Any]:
    """Return the signature of an offered function."""
    parameters = json.loads(offered.parameters)
    return {"name": offered.name, "description": offered.description, "parameters": parameters}
