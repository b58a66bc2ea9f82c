"""Stubs of heavy packages that OSWorld's package imports but few evaluators use; a call of a stub is a fault."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from dart_desktops.osworld.evaluator import faults

HEAVY = {"acoustid", "borb", "boto3", "docker", "easyocr", "openai", "pydrive", "torch", "transformers"}
"""Stubbed packages, unless installed into .venv/osworld."""


class MissingPackage(ImportError):
    """A stub was called."""


class AbsentName:
    """Any name of a stub, which can be used in annotations, but not called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentName(f"{self.name}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Record the fault and raise it: callers may swallow the exception."""
        message = f"{self.name} is called, and {self.name.partition('.')[0]} is not installed in .venv/osworld"
        faults.recorded.append(message)
        raise MissingPackage(message)

    def __or__(self, other: object) -> "AbsentName":
        return self

    __ror__ = __or__


class StubModule(ModuleType):
    """A stub module with any name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentName(f"{self.__name__}.{name}")


class StubFinder(MetaPathFinder, Loader):
    """Finds all modules of the heavy packages that are not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of a stub, None for any other module."""
        if name.partition(".")[0] not in HEAVY:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stub."""
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stub has no code."""


def install() -> None:
    """Add the stubs to the import system, after all installed packages."""
    sys.meta_path.append(StubFinder())
    for name, attribute, value in (("gymnasium", "Env", object), ("dotenv", "load_dotenv", lambda *_, **__: False)):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = module = ModuleType(name)
            setattr(module, attribute, value)
