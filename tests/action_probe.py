"""Programs of probes: they note the input that reaches them in the words of the contract of actions."""

LISTEN = """
const BUTTONS = ['left', 'middle', 'right'];
const direction = ({deltaX, deltaY}) => deltaY > 0 ? 'down' : deltaY < 0 ? 'up' : deltaX > 0 ? 'right' : 'left';
const listen = (tell, scale = 1) => {
  const at = (event) => [event.clientX * scale, event.clientY * scale];
  const notes = {
    mousemove: (event) => ['move', ...at(event)],
    mousedown: (event) => ['press', BUTTONS[event.button], ...at(event), event.detail],
    mouseup: (event) => ['release', BUTTONS[event.button], ...at(event)],
    wheel: (event) => ['scroll', direction(event), Math.abs(event.deltaX + event.deltaY) / 100, ...at(event)],
    keydown: (event) => ['down', event.key],
    keyup: (event) => ['up', event.key],
    drop: (event) => ['drop', event.target.id],
  };
  for (const kind in notes) addEventListener(kind, (event) => tell(notes[kind](event)), true);
};
"""
"""Of a page: ``tell`` gets each input."""
ECHO = """
import json
from Xlib import X, XK, display
x = display.Display()
screen = x.screen()
names = {value: name[3:] for name, value in vars(XK).items() if name.startswith("XK_")}
shape = 0, 0, screen.width_in_pixels, screen.height_in_pixels, 0, screen.root_depth
mask = X.KeyPressMask | X.KeyReleaseMask | X.ButtonPressMask | X.ButtonReleaseMask | X.PointerMotionMask
given = {"background_pixel": screen.white_pixel, "event_mask": mask, "override_redirect": True}
window = screen.root.create_window(*shape, **given)
window.map()
x.sync()
window.set_input_focus(X.RevertToNone, X.CurrentTime)
x.sync()
buttons, wheel = ["", "left", "middle", "right"], {4: "up", 5: "down", 6: "left", 7: "right"}
before, pressed_ms, times = (), 0, 0

def tell(*noted):
    print(json.dumps(noted), flush=True)

while True:
    event = x.next_event()
    if event.type in (X.KeyPress, X.KeyRelease):
        row = x.get_keyboard_mapping(event.detail, 1)[0]
        keysym = row[event.state & X.ShiftMask] or row[0]
        tell("down" if event.type == X.KeyPress else "up", names.get(keysym, hex(keysym)))
    elif event.type == X.MotionNotify:
        tell("move", event.root_x, event.root_y)
    elif event.type == X.ButtonPress and event.detail in wheel:
        tell("scroll", wheel[event.detail], 1, event.root_x, event.root_y)
    elif event.type == X.ButtonPress:
        place = event.detail, event.root_x, event.root_y
        times = times + 1 if place == before and event.time - pressed_ms <= 400 else 1
        before, pressed_ms = place, event.time
        tell("press", buttons[event.detail], *place[1:], times)
    elif event.type == X.ButtonRelease and event.detail not in wheel:
        tell("release", buttons[event.detail], event.root_x, event.root_y)
"""
"""Of a desktop, with a window that fills the screen; it prints each input as a line of JSON. Clicks within 400 ms are
one after the other, as in GTK."""
