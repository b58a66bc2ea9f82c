"""Compression of screens before they are stored and shown to the policy (``env.screenshots``)."""

import asyncio
import time

import msgspec

from dart_streams import pictures
from dart_streams.clock import since_ms
from dart_streams.config import Config
from dart_streams.screens import smart_resize
from workers.env import metrics
from workers.env.environment import EnvironmentFault, Screen


async def compress_screen(screen: Screen, config: Config) -> Screen:
    """Return a screen as it is stored; raise EnvironmentFault if its picture is broken.

    The policy's size of the result is that of ``screen``, so coordinates stay as they are.
    """
    settings, policy = config.env.screenshots, config.policy
    if not settings.format or screen.image is None:
        return screen
    started = time.perf_counter()
    size = smart_resize(screen.width, screen.height, policy.min_pixels, policy.max_pixels)
    compress = pictures.compress_picture
    try:
        image = await asyncio.to_thread(compress, screen.image, settings.format, settings.quality, size)
    except pictures.UnusablePicture as error:
        raise EnvironmentFault(f"the screen is no screenshot: {error}") from None
    metrics.compress_ms.record(since_ms(started))
    kind, width, height = pictures.facts_of(image)
    return msgspec.structs.replace(screen, image=image, media_type=kind, width=width, height=height)
