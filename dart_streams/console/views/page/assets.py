"""The page's own files, read once; a request names one of them or nothing, so no path of a request reaches the disk."""

import zipfile
from importlib import resources
from pathlib import Path
from typing import NamedTuple

PLOTS_MISSING = "the plots need uPlot, which `make setup` fetches; everything else works without it"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
UPLOT = {"uPlot.iife.min.js": "text/javascript", "uPlot.min.css": "text/css"}


class Asset(NamedTuple):
    """A file: its bytes and media type."""

    data: bytes
    media_type: str


def load_assets(jars: Path | None) -> dict[str, Asset]:
    """Return every file of the page by its path; uPlot's are from the WebJar in ``jars``, empty where there is none."""
    found: dict[str, Asset] = {}
    for file in resources.files("dart_streams.console.views.page").joinpath("static").iterdir():
        if (media_type := TYPES.get(Path(file.name).suffix)) is not None:
            found[f"/{'' if file.name == 'index.html' else file.name}"] = Asset(file.read_bytes(), media_type)
    return found | {f"/vendor/{name}": asset for name, asset in plot_library(jars).items()}


def plot_library(jars: Path | None) -> dict[str, Asset]:
    """Return uPlot's script and style."""
    found = {name: Asset(b"", media_type) for name, media_type in UPLOT.items()}
    jar = next(iter(sorted(jars.glob("uplot-*.jar"))), None) if jars is not None else None
    if jar is None:
        return found
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            base = name.rpartition("/")[2]
            if base in UPLOT:
                found[base] = Asset(archive.read(name), UPLOT[base])
    return found


def media_type_of(image: bytes) -> str:
    """Return an image's type by its first bytes; anything else is bytes, which no browser shows or runs."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream"
