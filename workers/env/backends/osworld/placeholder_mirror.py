"""Fills a mirror with placeholders (``placeholder_files``) for missing files."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dart_streams.errors import ServiceUnavailable
from workers.env.backends.osworld import placeholder_files, sidecar
from workers.env.backends.osworld.mirror import FileDigest, Mirror, hash_file, mirror_path
from workers.env.backends.osworld.steps import urls_of
from workers.env.backends.osworld.tasks import OsworldTask

WRITE_S = 600.0


def fill(mirror: Mirror, tasks: Sequence[OsworldTask], environment: Path = sidecar.ENVIRONMENT) -> int:
    """Write placeholders for the tasks' missing files of known types; return their number.

    Each is recorded as made, which distinguishes scores with placeholders from those of OSWorld. Raises
    ServiceUnavailable without the evaluators' environment.
    """
    if not (environment / "bin" / "python").exists():
        raise ServiceUnavailable(f"substitutes are written in {environment}: run `make osworld`")
    finished: dict[str, bool] = {}
    for task in tasks:
        for url in task.urls():
            starts = url in urls_of(task.config)
            finished[url] = finished.get(url, True) and not starts
    missing = [url for url in finished if mirror.find(url) is None]
    lines = [json.dumps({"path": str(mirror.folder / mirror_path(url)), "finished": finished[url]}) for url in missing]
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-I", placeholder_files.__file__],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=WRITE_S,
    )
    if done.returncode != 0:
        raise ServiceUnavailable(f"substitutes cannot be written: {done.stderr[-500:]}")
    made = [Path(answer["path"]) for answer in map(json.loads, done.stdout.splitlines()) if answer["made"]]
    digests = mirror.recorded()
    for path in made:
        place = str(path.relative_to(mirror.folder))
        digests[place] = FileDigest(hash_file(path), path.stat().st_size, made=True)
    mirror.record(digests)
    return len(made)
