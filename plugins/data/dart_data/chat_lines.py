"""Conversations with images, in the form of TRL and LLaMA-Factory, as demonstrations. Pure.

A run renders its own prompt, so a conversation gives the instruction, the screens and the answers only. Its system
messages are left out. Whatever else the run's prompt has no place for makes the line invalid.
"""

from collections.abc import Iterator, Sequence

import msgspec

from dart_data.demonstrations import DemonstrationStep
from dart_data.episode_columns import InvalidRow
from dart_streams.actions.dialects import Dialect, View

PLACEHOLDER = "<image>"
MARK = "\ue000instruction\ue001"


class ImageFile(msgspec.Struct, frozen=True):
    """An image by its file, as ``datasets`` has it."""

    path: str = ""


class ChatContent(msgspec.Struct, frozen=True):
    """A part of a message: a ``text``, or an ``image`` whose file is here or among the line's images."""

    type: str
    text: str = ""
    image: str | ImageFile = ""


class ChatTurn(msgspec.Struct, frozen=True):
    """A message; in a plain text ``<image>`` stands for the next image of the line."""

    role: str
    content: str | list[ChatContent]


class ChatLine(msgspec.Struct, frozen=True):
    """A conversation as a line of JSON; other keys are ignored."""

    messages: list[ChatTurn]
    images: list[str | ImageFile] = []
    task_id: str = ""


class ChatEpisode(msgspec.Struct, frozen=True):
    """Instruction, steps, and the screen after the last step (empty: none) of a conversation."""

    instruction: str
    steps: list[DemonstrationStep]
    last_image: str


def read_chat(line: ChatLine, dialect: Dialect) -> ChatEpisode:
    """Return a conversation's episode; raise :class:`InvalidRow`, with the message's number, if it makes none."""
    files = iter([file_of(image) for image in line.images])
    builder = EpisodeBuilder()
    for number, turn in enumerate(line.messages, 1):
        if turn.role not in ("system", "user", "assistant"):
            raise InvalidRow(f"message {number} has the role {turn.role!r}: there are system, user and assistant")
        for text, image in contents_of(turn, files, number):
            if turn.role == "user" and image:
                builder.show(image, number)
            elif turn.role == "user" and text.strip():
                builder.instruct(text.strip(), number)
            elif turn.role == "assistant" and text.strip():
                builder.answer(text.strip(), number)
    if left := len(list(files)):
        raise InvalidRow(f"{left} of its images are in no message")
    instruction = without_prompt("\n".join(builder.instruction), dialect)
    return ChatEpisode(instruction, builder.steps, builder.screen)


class EpisodeBuilder:
    """Collects instruction and steps; ``screen`` is the one that is not answered yet."""

    def __init__(self) -> None:
        self.instruction: list[str] = []
        self.steps: list[DemonstrationStep] = []
        self.screen = ""

    def show(self, image: str, number: int) -> None:
        """Add a screen of message ``number``."""
        if self.screen:
            raise InvalidRow(f"message {number} has a second image before an answer: a step has one screen")
        self.screen = image

    def instruct(self, text: str, number: int) -> None:
        """Add a text of the instruction."""
        if self.steps:
            raise InvalidRow(f"message {number} has text after the first answer: a run's prompt has none")
        self.instruction.append(text)

    def answer(self, text: str, number: int) -> None:
        """Add the answer to the screen."""
        if not self.screen:
            raise InvalidRow(f"message {number} answers without an image since the last answer")
        self.steps.append(DemonstrationStep(image=self.screen, text=text))
        self.screen = ""


def contents_of(turn: ChatTurn, files: Iterator[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a message in order, each as a text or the file of an image."""
    parts: Sequence[ChatContent]
    if isinstance(turn.content, str):
        texts = turn.content.split(PLACEHOLDER) if turn.role == "user" else [turn.content]
        first, *others = [ChatContent(type="text", text=text) for text in texts]
        parts = [first, *(part for text in others for part in (ChatContent(type="image"), text))]
    else:
        parts = turn.content
    for part in parts:
        if part.type == "text":
            yield part.text, ""
        elif part.type == "image":
            if not (file := file_of(part.image) or next(files, "")):
                raise InvalidRow(f"message {number} shows an image that has no file")
            yield "", file
        else:
            raise InvalidRow(f"message {number} has a part of type {part.type!r}: there are text and image")


def file_of(image: str | ImageFile) -> str:
    """Return the file of an image."""
    return image if isinstance(image, str) else image.path


def without_prompt(text: str, dialect: Dialect) -> str:
    """Return an instruction without the dialect's own words around it, which the run adds itself."""
    for _, prompt in dialect.system_messages(MARK, View(1, 1)):
        before, mark, after = (part.strip() for part in prompt.partition(MARK))
        if mark and (before or after) and text.startswith(before) and text.endswith(after):
            return text.removeprefix(before).removesuffix(after).strip()
    return text
