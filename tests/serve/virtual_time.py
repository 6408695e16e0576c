"""An event loop whose clock jumps to the next timer, so that waiting takes no time and tests no chances."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        super().__init__()

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run until done; nothing in it may wait for threads or files."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
