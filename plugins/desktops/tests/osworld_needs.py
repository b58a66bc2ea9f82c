"""What tests of OSWorld's tasks need, as marks that leave them out where it is missing."""

import os

import pytest

from dart_desktops.osworld import sidecar

EVALUATORS = pytest.mark.skipif(
    not (sidecar.ENVIRONMENT / "bin" / "python").exists(), reason="needs .venv/osworld: run `make osworld`"
)
CHECKOUT = pytest.mark.skipif(
    not os.environ.get("DART_OSWORLD"), reason="needs a checkout of OSWorld: set DART_OSWORLD"
)
