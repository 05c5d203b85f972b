"""Shared by all tests: a clean Dynamo and clean counters for each, and comparison against eager mode."""

from __future__ import annotations

import loafc.metrics
import pytest
import torch


@pytest.fixture(autouse=True)
def _clean():
    torch._dynamo.reset()
    loafc.metrics.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
