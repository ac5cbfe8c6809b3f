"""Two real engines behind HAProxy, put through what operations do to them; about a quarter of an hour."""

from __future__ import annotations

from pathlib import Path

import pytest
from replicas_proof import proof
from waiting import free_port

pytestmark = [pytest.mark.integration, pytest.mark.system, pytest.mark.timeout(3600)]


def test_real_replicas_fail_no_decision(tmp_path: Path) -> None:
    found = proof(free_port(), 10, operated=True, folder=tmp_path)
    for name in ("killed replica", "rolling restart", "model update", "refused update"):
        assert set(found[name]["statuses"]) == {"200"}, (name, found[name])
    assert [found[name]["exit"] for name in ("rolling restart", "model update", "refused update")] == [
        0,
        0,
        8,
    ]
    assert found["model update"]["then serves"] == found["refused update"]["then serves"] == "second-model"
    assert found["left"] == []
