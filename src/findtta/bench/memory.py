"""Peak memory of a stretch of work: the allocator's on a GPU, the process's on a CPU."""

from __future__ import annotations

from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MEGA = 1e6


class PeakMemory:
    """The highest memory in use since it was made, in megabytes.

    On a GPU it is what torch allocated there. On a CPU it is the resident memory of the whole process, so that
    it is comparable only between runs in processes of their own; Linux can begin that count anew, other
    systems give the peak since the process began.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR.write_text("5")
        except OSError:
            return

    def read(self) -> float:
        """Return the peak so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / _MEGA
        try:
            line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
            return int(line.split()[1]) * 1024 / _MEGA
        except (OSError, StopIteration):
            return _peak_since_the_process_began()


def _peak_since_the_process_began() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    import sys

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGA
