"""The base of every table of the configuration file, and the bounds that keys share.

A key's documentation is the string under its field; docs/configuration.md is generated from it. A ``ClassVar`` of a
table is no key: it is a constant that several processes must agree on.
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration file."""

    kind: ClassVar[str] = "core"

    @property
    def changed(self) -> frozenset[str]:
        """The keys that have another value than their default."""
        return frozenset(
            field.name
            for field in msgspec.structs.fields(type(self))
            if getattr(self, field.name)
            != (field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        )


class Optional(Section, frozen=True):
    """A table of one backend, of one rule or of secured services: a deployment without it never sets it."""

    kind: ClassVar[str] = "plug-in"
