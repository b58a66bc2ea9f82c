"""The project's dialect: the strict grammar of :mod:`dart_streams.actions.grammar`, and a short prompt."""

import msgspec

from dart_streams.actions import grammar
from dart_streams.actions.dialects.dialect import ParsedAnswer, Role, View
from dart_streams.actions.typed import Action

SYSTEM = "You use a computer. Answer with one action."


class Native(msgspec.Struct, frozen=True):
    """Accepts exactly one action an answer, in pixels of the policy's image."""

    tokens: tuple[str, ...] = ()
    separate: bool = False

    def read(self, answer: str, view: View) -> ParsedAnswer:
        """Parse an answer; raise :class:`Unparsable` unless it is one action of the grammar."""
        return ParsedAnswer((grammar.parse(answer),))

    def write(self, action: Action, view: View) -> str:
        """Return the canonical answer."""
        return grammar.format(action)

    def system_messages(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        return ("system", SYSTEM), ("user", instruction)

    def history_text(self, answer: str) -> str:
        """Return ``answer`` unchanged."""
        return answer
