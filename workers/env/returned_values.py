"""Validation of values that environments return: each is converted, or a fault names it.

Environments may be third-party code. An invalid value would become a record that cannot be decoded, or a reward with
which a group never closes.
"""

import math
import numbers
import reprlib
from typing import Any

import msgspec

from dart_streams import pictures
from dart_streams.actions import Action, Unparsable, format, parse
from dart_streams.actions.offered import check_offer
from topics.values import OfferedCall
from workers.env.environment import EnvironmentFault, Screen, rescale

LONGEST_SIDE = 2**16
INSTRUCTION_BYTES = 2**17
"""Maximum size of an instruction, far above that of a prompt."""
TEXT_BYTES = 2**16
"""Maximum size of a text that a demonstration types."""
CALLS_BYTES = 2**16
"""Maximum size of all offered functions, which each prompt has."""
MEDIA_TYPE_BYTES = 128
ROUNDING = 1e-9
"""Tolerance of a sum of partial rewards outside [0, 1]."""
REASON_CHARACTERS = 2000


def checked_reward(value: object) -> float:
    """Return a reward: a real number in [0, 1], also of numpy; raise EnvironmentFault for any other value."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not -ROUNDING <= number <= 1.0 + ROUNDING:
        raise EnvironmentFault(f"returned {describe_value(value)}: a reward is a number in [0, 1]")
    return min(max(number, 0.0), 1.0)


def checked_screen(value: object, *, imageless: bool = False) -> Screen:
    """Return a screen whose image is valid and has the declared size and type; raise EnvironmentFault otherwise.

    The image may be None with ``imageless``, or if the screen is done.
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
        calls=checked_calls(value.calls),
        returned=checked_text(value.returned, "returned", TEXT_BYTES),
    )
    if screen.image is not None:
        require_image(screen.image, screen)
    return screen


def checked_calls(value: object) -> tuple[OfferedCall, ...]:
    """Return offered functions with distinct names and valid schemas; raise EnvironmentFault for anything else."""
    if not isinstance(value, tuple | list):
        raise EnvironmentFault(f"returned a screen whose calls are {describe_value(value)}: they are a list of offers")
    for offer in value:
        if not isinstance(offer, OfferedCall):
            raise EnvironmentFault(f"offers {describe_value(offer)}: an offer is made by offer_call()")
        try:
            check_offer(offer)
        except ValueError as error:
            raise EnvironmentFault(f"offers {describe_value(offer.name)}: {printable_text(str(error))}") from None
    names = [offer.name for offer in value]
    if len(set(names)) < len(names):
        raise EnvironmentFault(f"offers functions of the same name: {describe_value(sorted(names))}")
    if (size := sum(len(msgspec.json.encode(offer)) for offer in value)) > CALLS_BYTES:
        raise EnvironmentFault(f"offers functions of {size} bytes: all together have at most {CALLS_BYTES}")
    return tuple(value)


def checked_action(value: object) -> Action:
    """Return a demonstration's action with plain integers; raise EnvironmentFault for any other value."""
    if not isinstance(value, Action):
        raise EnvironmentFault(f"yielded {describe_value(value)}: a demonstration yields actions")
    fields = {name: plain_value(item, name) for name, item in msgspec.structs.asdict(value).items()}
    try:
        action = msgspec.convert(fields, type(value))
        parse(format(rescale(action, (1, 1), (1, 1))))  # Its coordinates do not matter here: rescaling clamps them.
    except (msgspec.ValidationError, Unparsable) as error:
        raise EnvironmentFault(f"yielded {describe_value(value)}: {error}") from None
    return action


def plain_value(value: Any, name: str) -> Any:
    """Convert a field of an action to Python's integers and strings."""
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
    """Return a boolean, also of numpy; raise EnvironmentFault for any other value."""
    if not isinstance(value, bool) and type(value).__name__ not in {"bool_", "bool"}:
        raise EnvironmentFault(f"returned a screen whose {name} is {describe_value(value)}: it is True or False")
    return bool(value)


def checked_text(value: object, name: str, most_bytes: int) -> str:
    """Return a text that can be encoded as UTF-8 within the limit."""
    if not isinstance(value, str):
        raise EnvironmentFault(f"returned {name} = {describe_value(value)}: it is a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        surrogate = value[error.start : error.end]
        raise EnvironmentFault(f"returned {name} with {surrogate!a} at {error.start}: half of a character") from None
    if size > most_bytes:
        raise EnvironmentFault(f"returned {name} of {size} bytes: it has at most {most_bytes}")
    return str(value)


def image_bytes(value: object) -> bytes:
    """Return an image as bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise EnvironmentFault(f"returned a screen whose image is {describe_value(value)}: it is the bytes of a file")
    return bytes(value)


def require_image(image: bytes, screen: Screen) -> None:
    """Raise EnvironmentFault unless the image is complete and has the screen's size and media type."""
    try:
        kind, *size = pictures.facts_of(image)
        with pictures.open_picture(image) as image_file:
            image_file.verify()
    except pictures.UnusablePicture as error:
        reason = str(error).partition(" <")[0]  # Without the address of an object.
        raise EnvironmentFault(
            f"returned {describe_value(image)} as a screen, which is no whole image: {reason}"
        ) from None
    if size != [screen.width, screen.height] or kind != screen.media_type:
        claimed = f"{screen.media_type} of {screen.width} x {screen.height} pixels"
        raise EnvironmentFault(f"returned a screen as {claimed}, whose image is {kind} of {size[0]} x {size[1]}")


def describe_value(value: object) -> str:
    """Describe an invalid value in a short and printable form."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes that begin with {bytes(value[:12])!r}"
    return printable_text(reprlib.repr(value))


def printable_text(message: str) -> str:
    """Truncate a text, and escape surrogates, so that a record can contain it."""
    return message[:REASON_CHARACTERS].encode(errors="backslashreplace").decode()
