"""Functions that an environment offers beside mouse and keyboard: validation of calls, and words for prompts. Pure."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.typed import Call
from topics.values import OfferedCall

RETURNED_CHARACTERS = 2000
"""Maximum length of what a call returns to the policy; the rest is cut off."""
CUT = " … (cut)"


def offer_call(name: str, description: str, parameters: Mapping[str, Any]) -> OfferedCall:
    """Return an offer; ``parameters`` is the JSON schema of the arguments, an object."""
    schema = json.dumps(parameters, ensure_ascii=False, separators=(",", ":"))
    return OfferedCall(name=name, description=description, parameters=schema)


def check_offer(offer: OfferedCall) -> None:
    """Raise ValueError unless a record can contain the offer, and its parameters are a JSON schema."""
    msgspec.json.decode(msgspec.json.encode(offer), type=OfferedCall)
    validator_of(offer.parameters)


def check_call(call: Call, offered: Sequence[OfferedCall]) -> None:
    """Raise :class:`Unparsable` unless a function of this name is offered and takes these arguments.

    So does a schema that cannot be applied: one with an unknown reference or type, a circle, or too large numbers.
    """
    function = next((one for one in offered if one.name == call.name), None)
    if function is None:
        names = ", ".join(one.name for one in offered)
        raise Unparsable(f"unknown function {call.name[:80]!r}: offered are {names}", "call")
    try:
        error = next(validator_of(function.parameters).iter_errors(call.arguments), None)
    except Exception as fault:  # noqa: BLE001 - a schema of a third party, whose evaluation raises errors of any kind
        reason = f"{type(fault).__name__}: {str(fault)[:300]}"
        raise Unparsable(f"the schema of {call.name} cannot be applied: {reason}", "call") from None
    if error is not None:
        place = "".join(f"[{step!r}]" for step in error.absolute_path)
        raise Unparsable(f"the arguments{place} of {call.name}: {error.message[:300]}", "call")


@functools.lru_cache(maxsize=256)
def validator_of(parameters: str) -> Any:
    """Return the validator of a JSON schema; raise ValueError if it is none.

    References to other documents are never fetched.
    """
    import jsonschema
    import referencing

    schema = json.loads(parameters)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"no JSON schema: {error.message[:300]}") from None
    return kind(schema, registry=referencing.Registry())


def list_calls(offered: Sequence[OfferedCall]) -> str:
    """Return a line for each function: name, schema of the arguments, and description."""
    return "\n".join(f"- {one.name}({one.parameters}): {' '.join(one.description.split())}" for one in offered)


def cut_returned(text: str) -> str:
    """Return what calls returned, cut to :data:`RETURNED_CHARACTERS`."""
    return text if len(text) <= RETURNED_CHARACTERS else text[: RETURNED_CHARACTERS - len(CUT)] + CUT
