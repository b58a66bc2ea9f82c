"""The page that asks a new browser for the token, and the one that keeps its proof. They load nothing."""

import base64
import hashlib
import html
from collections.abc import Mapping
from urllib.parse import urlencode

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34em;margin:12vh auto;padding:0 20px;color:#17202c}"
    "input,button{font:inherit;padding:6px 10px}input{width:20em;max-width:100%}code{font-size:14px}"
)


def hash_of(text: str) -> str:
    """Return the source of a style or script for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = f"default-src 'none'; style-src {hash_of(STYLE)}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""Content security policy of the page that asks: its style, and its form to this server."""
KEEP = (
    "const{csrf,place}=document.body.dataset;localStorage.setItem('dart_streams csrf',csrf);"
    "location.replace(place+location.hash)"
)
UNKNOWN = "This browser has not opened the page before."
WRONG = "This token is of an earlier start of the page, or incomplete."
AGAIN = "This tab is of an earlier start of the page, or another of its addresses was opened here."


def sign_in_page(reason: str, kept: Mapping[str, str]) -> str:
    """Return the page as HTML. Its form keeps fragment and ``kept`` parameters of the address, so links lead on."""
    fields = "".join(
        f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">' for name, value in kept.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · dart_streams</title><style>{STYLE}</style></head>
<body><main>
<h1>dart_streams</h1>
<p>{html.escape(reason)} Give the token of the address that <code>dart-streams</code> printed: the text after
<code>?token=</code>. It is new at each start.</p>
<form method="get">{fields}<p><label for="token">Token</label></p>
<p><input id="token" name="token" type="password" required autocomplete="off" autofocus>
<button type="submit">Open the page</button></p></form>
</main></body></html>
"""


def opening_page(csrf: str, kept: Mapping[str, str]) -> tuple[str, str]:
    """Return the page that keeps a proof in the browser and opens the run's page, and its content security policy."""
    place = f"/?{urlencode(kept)}" if kept else "/"
    text = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>dart_streams</title></head>
<body data-csrf="{csrf}" data-place="{html.escape(place)}"><script>{KEEP}</script></body></html>
"""
    return text, f"default-src 'none'; script-src {hash_of(KEEP)}; base-uri 'none'; frame-ancestors 'none'"
