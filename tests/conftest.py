"""Settings and fixtures shared by all tests."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from findtta._processes import keep_freed_memory
from findtta.errors import MissingExtraError
from findtta.models.zoo import import_timm

# On a small shared machine threads only fight each other, and so do the workers of the C++ compiler.
torch.set_num_threads(1)
keep_freed_memory()
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Workers of Ray are nice to all others by default: on a busy machine they would hardly start.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")

# What is started in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("findtta", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("findtta")

#: Begun first, so that no process is left alone with them at the end. One has Ray, which takes all cores, one not.
LONGEST = ["test_ray_application.py", "test_compiled.py"]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*LONGEST, item.path.name].index(item.path.name))


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
