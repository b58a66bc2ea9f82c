"""The base of every table of the configuration file, and the bounds that keys share.

A key's documentation is the string under its field; docs/configuration.md is generated from it. A ``ClassVar`` of a
table is no key: it is a constant that several processes must agree on.
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

MOST = 10**9
"""Bound of all numbers, infinity excluded."""
Count = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
NonNegative = Annotated[float, Meta(ge=0, le=MOST)]
AboveZero = Annotated[float, Meta(gt=0, le=MOST)]
Real = Annotated[float, Meta(ge=-MOST, le=MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StepLimit = Annotated[int, Meta(ge=1, le=10_000)]
"""Steps of an episode, within the bound of the contract."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration file."""

    kind: ClassVar[str] = "core"

    @property
    def changed(self) -> frozenset[str]:
        """The keys with another value than their default."""
        return frozenset(
            field.name
            for field in msgspec.structs.fields(type(self))
            if getattr(self, field.name)
            != (field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        )


class Optional(Section, frozen=True):
    """A table of a backend, a rule or secured services, which most deployments do not have."""

    kind: ClassVar[str] = "plug-in"
