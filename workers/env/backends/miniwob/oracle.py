"""The oracle: the next correct action of each page, computed from the page's current state."""

from typing import Any

from dart_streams import actions
from workers.env.backends.miniwob.page_scripts import FOLDER
from workers.env.environment import NoOracle

HELPERS = FOLDER.joinpath("oracle.js").read_text(encoding="utf-8")

NEXT = {
    "bisect-angle": "answered() || drawn(...halved(drawnAt('.init-black'), drawnAt('.init-blue')[0]))",
    "circle-center": "answered() || drawn(...drawnAt('.black-circle')[0])",
    "choose-date-easy": "pick(goal(/Select (\\S+)/)) || at(all('#subbtn')[0])",
    "click-test": "at(all('#subbtn')[0])",
    "click-test-2": "at(labeled('button', 'ONE'))",
    "click-button": "at(labeled('#area button', quoted()))",
    "click-button-sequence": "at(all(buttonsPushed.length ? '#subbtn2' : '#subbtn')[0])",
    "click-checkboxes": "tick(goal(/Select (.*) and click/).split(', ')) || at(all('#subbtn')[0])",
    "click-collapsible": "shown('.ui-accordion-content') ? at(all('#subbtn')[0]) : at(all('#area h3')[0])",
    "click-collapsible-nodelay": "shown('.ui-accordion-content') ? at(all('#subbtn')[0]) : at(all('#area h3')[0])",
    "click-color": "at(all('#area .color').find((e) => e.dataset.color === goal(/on the (.*) colored/)))",
    "click-dialog": "at(all('.ui-dialog-titlebar-close')[0])",
    "click-dialog-2": "quoted() === 'x' ? at(all('.ui-dialog-titlebar-close')[0])"
    " : at(labeled('.ui-dialog-buttonset button', quoted()))",
    "click-link": "at(labeled('#area .alink', quoted()))",
    "click-option": "tick([goal(/Select (.*) and click/)]) || at(all('#subbtn')[0])",
    "click-shades": "at(all('#area span').find((e) => e.dataset.color === goal(/shades of (\\w+)/)"
    " && !e.classList.contains('selected'))) || at(all('#submit')[0])",
    "click-tab": "at(all('#area ul a')[Number(goal(/#(\\d)/)) - 1])",
    "click-widget": "at(all('.widget input, .widget button, .widget textarea')"
    ".find((e) => e.dataset.type === quoted()))",
    "drag-box": "into(all('#draggableSmall')[0], all('#draggableLarge')[0]) || at(all('#subbtn')[0])",
    "drag-circle": "push(all('svg circle')[0], goal(/circle (\\w+)/)) || at(all('#subbtn')[0])",
    "drag-single-shape": "push(all('svg .black-shape')[0], goal(/item (\\w+)/)) || at(all('#subbtn')[0])",
    "enter-text": "fill(all('#tt')[0], quoted()) || at(all('#subbtn')[0])",
    "enter-text-dynamic": "fill(all('#tt')[0], quoted()) || at(all('#subbtn')[0])",
    "find-midpoint": "answered() || drawn(...between(...drawnAt('.black-circle')))",
    "focus-text": "at(all('#area input')[0])",
    "focus-text-2": "at(all('#area input')[Number(goal(/(\\d)(?:st|nd|rd)/)) - 1])",
    "form-sequence-2": "all('#area [type=radio]')[Number(goal(/the (\\d)\\w+ radio/)) - 1].checked"
    " ? fill(all('#area [type=text]')[Number(goal(/the (\\d)\\w+ textbox/)) - 1], goal(/number \"(.*?)\"/))"
    " || at(all('#subbtn')[0]) : at(all('#area [type=radio]')[Number(goal(/the (\\d)\\w+ radio/)) - 1])",
    "generate-number": "at(all(generated() ? '#submit' : '#generate')[0])",
    "grid-coordinate": "at(document.getElementById(goal(/coordinate (\\(.*\\))/)))",
    "identify-shape": "at(all(`#area-buttons [data-type=${pictured()}]`)[0])",
    "odd-or-even": "at(unmarked()) || at(all('#submit')[0])",
    "right-angle": "answered() || drawn(...upright(drawnAt('#init-black')[0], drawnAt('#init-blue')[0]))",
}
"""Each page's next action as an expression over the helpers of oracle.js: a point to click, with another one
(``to_x``, ``to_y``) to drag to, ``text`` to type, or null."""


def next_action(page: str) -> str:
    """Return a script that yields the argument of :func:`as_action`; raise :class:`NoOracle` without an oracle."""
    if page not in NEXT:
        raise NoOracle(f"no oracle for MiniWoB++ page {page!r}: add one to workers/env/backends/miniwob/oracle.py")
    return f"(() => {{ {HELPERS}; return {NEXT[page]} || null; }})()"


def as_action(result: dict[str, Any]) -> actions.Action:
    """Return the action for the result of a page's oracle."""
    match result:
        case {"text": text}:
            return actions.Type(text)
        case {"x": x, "y": y, "to_x": to_x, "to_y": to_y}:
            return actions.Drag(x, y, to_x, to_y)
    return actions.Click(result["x"], result["y"])
