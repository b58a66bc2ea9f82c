"""Print the answers of addresses as a JSON list. Usage: ``python -m tests.compose.ask URL...``."""

import json
import sys
import urllib.request

TIMEOUT_S = 120


def answer(url: str) -> object:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    return json.loads(text) if response.headers.get_content_type() == "application/json" else text


if __name__ == "__main__":
    sys.stdout.write(json.dumps([answer(url) for url in sys.argv[1:]]))
