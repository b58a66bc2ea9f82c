"""What environments return, checked: a value comes out as the contract has it, or as a fault that names it. Pure.

An environment may be anybody's code, and its server anybody's program. A wrong value that got further would become a
record that nobody decodes, or a reward that no group closes with.
"""

import math
import numbers
import reprlib
from typing import Any

import msgspec

from dart_streams import pictures
from dart_streams.actions import Action, Unparsable, format, parse
from workers.env.environment import EnvironmentFault, Screen, rescale

LONGEST_SIDE = 2**16
INSTRUCTION_BYTES = 2**17
"""Of a task in words: far beyond what a prompt has room for."""
TEXT_BYTES = 2**16
"""Of what a demonstration types."""
MEDIA_TYPE_BYTES = 128
ROUNDING = 1e-9
"""How far a sum of partial rewards may miss [0, 1]."""
REASON_CHARACTERS = 2000


def checked_reward(value: object) -> float:
    """Return a reward: a real number in [0, 1], numpy's included; raise EnvironmentFault for anything else."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not -ROUNDING <= number <= 1.0 + ROUNDING:
        raise EnvironmentFault(f"returned {describe_value(value)}: a reward is a number in [0, 1]")
    return min(max(number, 0.0), 1.0)


def checked_screen(value: object, *, imageless: bool = False) -> Screen:
    """Return a screen whose image can be read and is what the screen says of it.

    ``imageless`` if it may have none; so may one that is done. Raises EnvironmentFault for anything else.
    """
    if not isinstance(value, Screen):
        raise EnvironmentFault(f"returned {describe_value(value)}: it returns a Screen")
    done = checked_flag(value.done, "done")
    screen = Screen(
        image=None if value.image is None and (imageless or done) else image_bytes(value.image),
        media_type=checked_text(value.media_type, "media_type", MEDIA_TYPE_BYTES),
        width=checked_side(value.width, "width"),
        height=checked_side(value.height, "height"),
        instruction=checked_text(value.instruction, "instruction", INSTRUCTION_BYTES),
        done=done,
    )
    if screen.image is not None:
        require_image(screen.image, screen)
    return screen


def checked_action(value: object) -> Action:
    """Return the action of a demonstration with plain integers; raise EnvironmentFault for anything else."""
    if not isinstance(value, Action):
        raise EnvironmentFault(f"yielded {describe_value(value)}: a demonstration yields actions")
    fields = {name: plain_value(item, name) for name, item in msgspec.structs.asdict(value).items()}
    try:
        action = msgspec.convert(fields, type(value))
        parse(format(rescale(action, (1, 1), (1, 1))))  # Where it is makes no difference: rescaling corrects that.
    except (msgspec.ValidationError, Unparsable) as error:
        raise EnvironmentFault(f"yielded {describe_value(value)}: {error}") from None
    return action


def plain_value(value: Any, name: str) -> Any:
    """Return a field of an action with Python's own integers and texts."""
    if isinstance(value, list | tuple):
        return [plain_value(item, name) for item in value]
    if isinstance(value, str):
        return checked_text(value, name, TEXT_BYTES)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def checked_side(value: object, name: str) -> int:
    """Return a side of a screen in pixels."""
    pixels = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else 0
    if not 1 <= pixels <= LONGEST_SIDE:
        raise EnvironmentFault(
            f"returned a screen whose {name} is {describe_value(value)}: it is 1 to {LONGEST_SIDE} pixels"
        )
    return pixels


def checked_flag(value: Any, name: str) -> bool:
    """Return a truth value, numpy's included: what equals neither is no answer to a question of yes or no."""
    if not isinstance(value, bool) and type(value).__name__ not in {"bool_", "bool"}:
        raise EnvironmentFault(f"returned a screen whose {name} is {describe_value(value)}: it is True or False")
    return bool(value)


def checked_text(value: object, name: str, most_bytes: int) -> str:
    """Return a text that a record can carry."""
    if not isinstance(value, str):
        raise EnvironmentFault(f"returned {name} = {describe_value(value)}: it is a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        found = value[error.start : error.end]
        raise EnvironmentFault(f"returned {name} with {found!a} at {error.start}: half of a character") from None
    if size > most_bytes:
        raise EnvironmentFault(f"returned {name} of {size} bytes: it has at most {most_bytes}")
    return str(value)


def image_bytes(value: object) -> bytes:
    """Return an image as bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise EnvironmentFault(f"returned a screen whose image is {describe_value(value)}: it is the bytes of a file")
    return bytes(value)


def require_image(image: bytes, screen: Screen) -> None:
    """Raise EnvironmentFault unless the image is a whole screenshot, of the screen's size and of its media type."""
    try:
        kind, *size = pictures.facts_of(image)
        with pictures.open_picture(image) as found:
            found.verify()
    except pictures.UnusablePicture as error:
        why = str(error).partition(" <")[0]  # Without the address of an object.
        raise EnvironmentFault(
            f"returned {describe_value(image)} as a screen, which is no whole image: {why}"
        ) from None
    if size != [screen.width, screen.height] or kind != screen.media_type:
        claimed = f"{screen.media_type} of {screen.width} x {screen.height} pixels"
        raise EnvironmentFault(f"returned a screen as {claimed}, whose image is {kind} of {size[0]} x {size[1]}")


def describe_value(value: object) -> str:
    """Return a wrong value for a reason, short and printable."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes that begin with {bytes(value[:12])!r}"
    return printable_text(reprlib.repr(value))


def printable_text(message: str) -> str:
    """Return a text as a record can carry it: halves of characters escaped, and not without end."""
    return message[:REASON_CHARACTERS].encode(errors="backslashreplace").decode()
