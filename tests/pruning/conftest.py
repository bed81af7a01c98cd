from __future__ import annotations

import pytest

from pruning.bench import Bench, trained


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return trained(tmp_path_factory.mktemp("trained"))
