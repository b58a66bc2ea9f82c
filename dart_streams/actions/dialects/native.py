"""The project's dialect: the strict grammar of :mod:`dart_streams.actions.grammar`, and a short prompt."""

from dart_streams.actions import grammar
from dart_streams.actions.dialects.dialect import AnswerBuilder, Dialect, Role, View
from dart_streams.actions.typed import Action

SYSTEM = "You use a computer. Answer with one action."


class Native(Dialect, frozen=True, kw_only=True):
    """Accepts exactly one action an answer, in pixels of the policy's image."""

    def _add_actions(self, answer: str, builder: AnswerBuilder) -> None:
        builder.add(grammar.parse(answer))

    def write(self, action: Action, view: View) -> str:
        """Return the canonical answer."""
        return grammar.format(action)

    def system_messages(self, instruction: str, view: View) -> tuple[tuple[Role, str], ...]:
        """Return the prompt's messages before the first screen, as (role, text)."""
        return ("system", SYSTEM), ("user", instruction)
