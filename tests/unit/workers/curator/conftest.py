from unittest.mock import AsyncMock

import pytest

from tests.unit.workers.curator.broker import Broker
from workers.curator import journaled_state


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(journaled_state, "read_log_entries", AsyncMock(return_value=[]))
    return Broker()
