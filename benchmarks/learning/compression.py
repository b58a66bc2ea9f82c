"""Recorded screens as a deployment stores them (``env.screenshots``)."""

import msgspec

from benchmarks.learning.screens import Recording
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.pictures import compress_picture, facts_of
from dart_streams.screens import smart_resize
from dart_streams.store.blobs import ref_of
from topics.values import BlobRef


def compress_recording(recording: Recording, config: Config) -> Recording:
    """Return a recording with its screens compressed; raise UserError if they would be scaled down.

    Parts of a recorded screen are found by its pixels.
    """
    settings, policy = config.env.screenshots, config.policy
    if not settings.format:
        return recording
    images: dict[str, bytes] = {}
    refs: dict[str, BlobRef] = {}
    for sha256, image in recording.images.items():
        before = facts_of(image)
        size = smart_resize(before.width, before.height, policy.min_pixels, policy.max_pixels)
        data = compress_picture(image, settings.format, settings.quality, size)
        after = facts_of(data)
        if after[1:] != before[1:]:
            raise UserError("recorded screens keep their size: leave policy.max_pixels larger than they are")
        refs[sha256] = ref = ref_of(data, *after)
        images[ref.sha256] = data
    problems = {
        name: msgspec.structs.replace(
            problem,
            states={
                place: msgspec.structs.replace(state, screen=refs[state.screen.sha256])
                for place, state in problem.states.items()
            },
        )
        for name, problem in recording.problems.items()
    }
    return Recording(problems, images)
