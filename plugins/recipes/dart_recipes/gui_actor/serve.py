"""An OpenAI-compatible endpoint of a policy with the attention head, for ``rollout.engine = "openai"``.

``.venv/model/bin/python -m dart_recipes.gui_actor.serve FOLDER`` answers each prompt with a click on its last
image. The verifier's first accepted candidate is clicked, so sampling parameters have no effect, and answers have no
tokens and log-probabilities: nothing is trained on them.
"""

import argparse
import asyncio
import base64
import binascii
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from aiohttp import web
from msgspec import Meta

from dart_recipes.gui_actor.grounding import Asked, Grounder
from dart_streams.actions import Click
from dart_streams.actions.dialects import View
from dart_streams.actions.dialects.native import Native
from dart_streams.config import Policy
from dart_streams.config.text import MALFORMED
from dart_streams.pictures import UnusablePicture
from dart_streams.policy.rendering import renderer_of
from dart_streams.store.blobs import ref_of
from topics.values import MessagePart
from trainer.data.collate import Collator, ModelImage

PREFIX = "data:"
MOST_BYTES = 64 << 20
"""Largest request."""
NAME = "gui-actor"
PORT = 8095


class ImageUrl(msgspec.Struct, frozen=True):
    """A data URL."""

    url: str


class MessageContent(msgspec.Struct, frozen=True):
    """A text or an image of a message."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class RoleMessage(msgspec.Struct, frozen=True):
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str | list[MessageContent]


class ChatRequest(msgspec.Struct, frozen=True):
    """What is used of a request's body."""

    messages: Annotated[list[RoleMessage], Meta(min_length=1)]


class UnusableRequest(ValueError):
    """A request without a screen, or with an unusable one."""


class GroundingEndpoint:
    """Answers requests one at a time."""

    def __init__(self, grounder: Grounder) -> None:
        self.grounder = grounder
        self.dialect = Native()
        self.collator = Collator(grounder.renderer)
        self._turn = asyncio.Lock()

    def application(self) -> web.Application:
        """Return the server's routes."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.add_routes([web.post("/v1/chat/completions", self.complete), web.get("/v1/models", self.list_models)])
        return app

    async def list_models(self, _: web.Request) -> web.Response:
        """Name the model."""
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    async def complete(self, request: web.Request) -> web.Response:
        """Answer a chat; 400 for one without a usable screen."""
        try:
            chat = msgspec.json.decode(await request.read(), type=ChatRequest)
            asked = await asyncio.to_thread(self.asked_by, chat)
        except (UnusableRequest, *MALFORMED) as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        async with self._turn:
            text = await asyncio.to_thread(self.answer, asked)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(asked.prompt.token_ids), "completion_tokens": 0}
        return web.json_response({"object": "chat.completion", "model": NAME, "choices": [choice], "usage": usage})

    def asked_by(self, chat: ChatRequest) -> Asked:
        """Return the prompt of a chat; raise :class:`UnusableRequest` without a usable screen."""
        turns, images = [], []
        for message in chat.messages:
            parts = message.content
            for part in [MessageContent("text", parts)] if isinstance(parts, str) else parts:
                if part.image_url is None:
                    turns.append(MessagePart(role=message.role, text=part.text or ""))
                    continue
                data = data_of(part.image_url.url)
                images.append(self.encode(data))
                width, height = images[-1].size
                turns.append(MessagePart(role=message.role, image=ref_of(data, "image/png", width, height)))
        if not images:
            raise UnusableRequest("the messages have no image: a click needs a screen")
        return Asked(self.grounder.renderer.prompt(turns), images)

    def encode(self, data: bytes) -> ModelImage:
        """Return a picture as model input; raise :class:`UnusableRequest` if it is none."""
        try:
            return self.collator.encode(data)
        except UnusablePicture as error:
            raise UnusableRequest(f"an image is unusable: {error}") from None

    def answer(self, asked: Asked) -> str:
        """Return the click in pixels of the last image, in the ``native`` dialect."""
        [(x, y)] = self.grounder.locate([asked])
        width, height = asked.images[-1].size
        click = Click(min(int(x), width - 1), min(int(y), height - 1))
        return self.dialect.write(click, View(width, height))


def data_of(url: str) -> bytes:
    """Return the bytes of a data URL; raise :class:`UnusableRequest` for another one."""
    head, _, encoded = url.partition(",")
    if not head.startswith(PREFIX) or not head.endswith(";base64"):
        raise UnusableRequest("an image must be a data URL in base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise UnusableRequest(f"an image is no base64: {error}") from None


def main() -> None:
    """Serve a folder until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="as `measure --save` writes it")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    grounder = Grounder(given.folder, renderer_of(given.folder, Policy()))
    grounder.load_heads(given.folder)
    web.run_app(GroundingEndpoint(grounder).application(), host=given.host, port=given.port)


if __name__ == "__main__":
    main()
