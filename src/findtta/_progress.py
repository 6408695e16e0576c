"""Progress on standard error: a bar in a terminal or notebook, elsewhere a plain line every few seconds."""

import io
import sys
import threading
from typing import Any

from tqdm.auto import tqdm as bar
from tqdm.std import tqdm

EVERY = 5.0  # seconds between two lines; what ends sooner prints none
_COUNTED = "{desc}{unit} {n_fmt}/{total_fmt}, {elapsed} elapsed, {remaining} left{postfix}"
_TIMED = "{desc}{elapsed} elapsed{postfix}"


def progress_bar(total: int | None, unit: str, *, quiet: bool = False, **options: Any) -> Any:
    """Return what shows progress, with the interface of ``tqdm``; it must be closed, best by ``with``."""
    shows_bars = sys.stderr.isatty() or "ipykernel" in sys.modules
    kind = bar if shows_bars else _Lines
    return kind(total=total, unit=unit, leave=False, disable=quiet, **options)


class _Lines(tqdm):  # type: ignore[misc]  # tqdm has no types
    """Progress for a log: whatever is known, in regular intervals, also while nothing moves."""

    def __init__(self, *, desc: str = "", **options: Any) -> None:
        self._ended = threading.Event()
        super().__init__(file=io.StringIO(), **options)
        self.set_description(desc)
        if not self.disable:
            threading.Thread(target=self._print_lines, name="progress", daemon=True).start()

    def _print_lines(self) -> None:
        while not self._ended.wait(EVERY):
            self.bar_format = _COUNTED if self.total else _TIMED
            print(self, file=sys.stderr, flush=True)

    def display(self, *_args: Any, **_options: Any) -> None:
        """Show nothing: the thread does."""

    def close(self) -> None:
        """Print no more."""
        self._ended.set()
        super().close()
