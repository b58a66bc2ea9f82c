"""The files of the page, read once, so that no path of a request reaches the disk."""

import zipfile
from importlib import resources
from pathlib import Path
from typing import NamedTuple

PLOTS_MISSING = "plots need uPlot (`make setup` fetches it); the rest of the page works without it"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
UPLOT = {"uPlot.iife.min.js": "text/javascript", "uPlot.min.css": "text/css"}


class Asset(NamedTuple):
    """A file of the page."""

    data: bytes
    media_type: str


def load_assets(jars: Path | None) -> dict[str, Asset]:
    """Return the files of the page by path; uPlot's come from its WebJar in ``jars``, and are empty without one."""
    files = read_static("console.views.page")
    return files | {f"/vendor/{name}": asset for name, asset in read_uplot(jars).items()}


def read_static(package: str) -> dict[str, Asset]:
    """Return the files in a package's folder ``static`` by path."""
    assets: dict[str, Asset] = {}
    for file in resources.files(package).joinpath("static").iterdir():
        if (media_type := TYPES.get(Path(file.name).suffix)) is not None:
            assets[f"/{'' if file.name == 'index.html' else file.name}"] = Asset(file.read_bytes(), media_type)
    return assets


def read_uplot(jars: Path | None) -> dict[str, Asset]:
    """Return uPlot's script and style."""
    assets = {name: Asset(b"", media_type) for name, media_type in UPLOT.items()}
    for jar in sorted(jars.glob("uplot-*.jar"))[:1] if jars is not None else ():
        with zipfile.ZipFile(jar) as archive:
            for path in archive.namelist():
                if (name := path.rpartition("/")[2]) in UPLOT:
                    assets[name] = Asset(archive.read(path), UPLOT[name])
    return assets


def media_type_of(image: bytes) -> str:
    """Return the media type by the first bytes; other content is plain bytes, which no browser renders or runs."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream"
