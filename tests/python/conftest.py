"""Shared by all tests: a clean Dynamo and clean counters for each, and comparison against eager mode."""

from __future__ import annotations

import loafc.metrics
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Machine code of earlier runs must not make a test pass, nor the tests' own stay behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOAFC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    loafc.metrics.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
