"""The project's dialect: the strict grammar of :mod:`dart_streams.actions.grammar`, and a short prompt."""

from collections.abc import Sequence

from dart_streams.actions import grammar
from dart_streams.actions.dialects.dialect import AnswerBuilder, Dialect, Role, View
from dart_streams.actions.offered import list_calls
from dart_streams.actions.typed import Action, Call
from topics.values import OfferedCall

SYSTEM = "You use a computer. Answer with one action."
OFFERED = "{system}\nAn action may also call a function: call(name='NAME', arguments='JSON object')\n{listed}"


class Native(Dialect, frozen=True, kw_only=True):
    """Accepts exactly one action an answer, in pixels of the policy's image."""

    def _add_actions(self, answer: str, builder: AnswerBuilder) -> None:
        action = grammar.parse(answer)
        if isinstance(action, Call) and not builder.offered:
            raise grammar.unknown_action(grammar.CALL_NAME)
        builder.add(action)

    def write(self, action: Action, view: View) -> str:
        """Return the canonical answer."""
        return grammar.format(action)

    def system_messages(
        self, instruction: str, view: View, offered: Sequence[OfferedCall] = ()
    ) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        system = OFFERED.format(system=SYSTEM, listed=list_calls(offered)) if offered else SYSTEM
        return ("system", system), ("user", instruction)
