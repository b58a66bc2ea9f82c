"""What a test gives OSWorld's scripts and agents: answers of a model, and stubs of packages."""

from pathlib import Path

from aiohttp import web

STUBS = f"""
import sys
sys.path.append({str(Path(__file__).resolve().parents[2])!r})
from dart_desktops.osworld.evaluator import import_stubs
import_stubs.HEAVY = import_stubs.HEAVY | {{"botocore"}}
import_stubs.install()
"""
"""Imported when Python starts, as `.venv/osworld` lacks heavy packages that OSWorld imports."""


def thought(action: str) -> str:
    """Return an answer of UI-TARS."""
    return f"Thought: now.\nAction: {action}"


def chat_answer(content: str) -> web.Response:
    """Return the response to a request for a chat completion."""
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return web.json_response(
        {"id": "1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}
    )
