"""A trajectory as one picture: its screens in order, each with its action. Pure."""

import io
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw

from dart_streams import pictures
from topics.observations import Observation

MAX_SCREENS = 8
"""Maximum number of screens: the first ones and the last."""
WIDTH, TEXT_HEIGHT = 320, 28
LETTERS = WIDTH // 6
"""Letters that fit below a screen."""


def draw_filmstrip(observations: Sequence[Observation], images: Mapping[str, bytes]) -> bytes:
    """Return a PNG of a trajectory's screens side by side with the action below each; needs one observation."""
    shown = [number for number, one in enumerate(observations) if one.screenshot is not None]
    shown = shown if len(shown) <= MAX_SCREENS else [*shown[: MAX_SCREENS - 1], shown[-1]]
    screens = [scale_screen(images[observations[number].screenshot.sha256]) for number in shown]  # type: ignore[union-attr]
    height = max((screen.height for screen in screens), default=0)
    strip = Image.new("RGB", (max(1, len(screens)) * WIDTH, height + TEXT_HEIGHT), "white")
    draw = ImageDraw.Draw(strip)
    for place, (number, screen) in enumerate(zip(shown, screens, strict=True)):
        strip.paste(screen, (place * WIDTH, 0))
        draw.text((place * WIDTH + 4, height + 8), f"{number}: {action_after(observations, number)}", fill="black")
    file = io.BytesIO()
    strip.save(file, "PNG")
    return file.getvalue()


def scale_screen(data: bytes) -> Image.Image:
    """Return a screen at the width of the strip, or a gap for an unusable picture."""
    try:
        image = pictures.decode_picture(data)
    except pictures.UnusablePicture:
        return Image.new("RGB", (WIDTH, WIDTH), "gray")
    return image.resize((WIDTH, max(1, round(image.height * WIDTH / image.width))))


def action_after(observations: Sequence[Observation], number: int) -> str:
    """Return the action after an observation, or the end of the episode after the last one, cut to its place."""
    if number + 1 < len(observations):
        taken = observations[number + 1].taken
        text = "no answer" if taken is None else taken.action or f"invalid: {taken.text}"
    else:
        end = observations[number].end
        text = f"{end.kind}, reward {end.reward}" if end else ""
    return text.replace("\n", " ").encode("latin-1", "replace").decode("latin-1")[:LETTERS]


def caption_of(observations: Sequence[Observation]) -> str:
    """Return a trajectory as text: task, instruction, answers, end."""
    first, end = observations[0], observations[-1].end
    answers = [f"{number}. {one.taken.text}" for number, one in enumerate(observations[1:]) if one.taken]
    outcome = f"{end.kind}, reward {end.reward}" if end else "not ended"
    return "\n".join([f"{first.order.task_id} ({first.trajectory_id})", first.instruction, *answers, outcome])
