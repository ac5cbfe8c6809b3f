"""A short run of the mixed load; ten minutes of it are run by hand."""

import asyncio

import pytest
from soak import Soak

pytestmark = pytest.mark.integration


def test_hostile_clients_change_no_answer(server, figure) -> None:
    soak = Soak(server.url, seconds=25, clients=32, pid=None, seed=1)
    summary = asyncio.run(soak.run())
    assert summary["passed"], summary
    assert sum(count for name, count in summary["statuses"].items() if name.startswith("bad image")) > 0
    figure(
        f"mixed load, 32 clients: {summary['compared']} answers compared with those alone, largest "
        f"difference {summary['largest_difference']:.4f}"
    )
