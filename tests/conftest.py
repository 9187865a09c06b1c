"""What every test shares: two threads, no model hub, the same random numbers each time."""

from __future__ import annotations

import os
import random
import sys

import pytest

# Read by torch and the Hugging Face packages when they are imported, here or in a subprocess of a test.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    # Only where a test file has imported torch: the others should not wait for it.
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
