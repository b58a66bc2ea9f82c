"""The script by which a document draws in the page what Chromium would show in windows of its own."""

import json
from importlib.resources import files

PARTS = ("popup.js", "pickers.js", "native.js")


def native_script(width: int, height: int) -> str:
    """Return the script for new documents; popups stay within the first ``width`` x ``height`` pixels of a page."""
    folder = files("workers.env.backends.miniwob")
    parts = [folder.joinpath(part).read_text() for part in PARTS]
    area = json.dumps({"width": width, "height": height})
    return "\n".join(["(() => {", f"const AREA = {area};", *parts, "})();"])
