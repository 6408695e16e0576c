"""Settings and fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from findtta.errors import MissingExtraError
from findtta.models.zoo import import_timm

# On a small shared machine threads only fight each other, and so do the workers of the C++ compiler.
torch.set_num_threads(1)
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

settings.register_profile("findtta", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("findtta")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of the reference data that lives beside the project."""
    if not SHARED.is_dir():
        pytest.skip("the shared reference data is not here")
    return SHARED


@pytest.fixture(scope="session")
def timm():
    try:
        return import_timm()
    except MissingExtraError:
        pytest.skip("timm is not installed")
