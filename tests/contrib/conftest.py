"""What the tests of metrics share."""

import pytest

from milepost.contrib import gauges


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures waits for the answer of a slow machine, too."""
    monkeypatch.setattr(gauges, "GAUGES_TIMEOUT_SECONDS", 60.0)
