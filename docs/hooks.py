"""Docstrings use the roles of Sphinx (``:class:`Name```); a page of the site shows their names only."""

import re
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):(?=<code>)")
SHORTENED = re.compile(r"<code>~(?:\w+\.)+(\w+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Return a page without the roles, and with the last part of a name that a tilde shortens."""
    return SHORTENED.sub(r"<code>\1</code>", ROLE.sub("", html))
