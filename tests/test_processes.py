"""Processes of the commands: what they do with memory they free."""

import os
import subprocess
import sys

import pytest

from findtta._processes import ALLOCATOR_SETTINGS, keep_freed_memory

FAULTS = """
import resource, sys
from findtta._processes import keep_freed_memory
import torch
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
# Until small blocks have found other places: glibc 2.36 does not use a map again that one stands behind.
for _ in range(40):
    torch.ones(16_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_map_that_is_made_again_takes_no_new_pages():
    pages = 20 * 16_000_000 * 4 // 4096
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_SETTINGS.values()}
    command = [sys.executable, "-c", FAULTS, "kept"]
    assert int(subprocess.check_output(command, text=True, env=environment)) < pages / 10


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_settings_of_the_user_stay_and_others_are_inherited(monkeypatch):
    own, other = ALLOCATOR_SETTINGS.values()
    monkeypatch.setenv(own, "4096")
    monkeypatch.delenv(other, raising=False)
    keep_freed_memory()
    inherited = f"import os; print(os.environ[{own!r}], os.environ[{other!r}])"
    assert subprocess.check_output([sys.executable, "-c", inherited], text=True).split() == ["4096", str(1 << 30)]
