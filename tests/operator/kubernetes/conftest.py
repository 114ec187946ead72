from __future__ import annotations

import pytest
from kubernetes_lab import Lab


@pytest.fixture
def lab() -> Lab:
    """A cluster in memory."""
    return Lab()
