"""A real ``findtta serve`` in processes of its own."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from findtta.serve.embedded import PROCESS_NAME

START_S = 180
_START = "import sys; from findtta.cli.main import main; sys.exit(main())"


@dataclass
class LiveServer:
    url: str
    process: subprocess.Popen[str]

    def replicas(self) -> list[int]:
        """The replicas of the model among the processes that this server started."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.name() == PROCESS_NAME or "ServeReplica:findtta:Model" in " ".join(child.cmdline()):
                    found.append(child.pid)
        return found


@contextlib.contextmanager
def live_server(*arguments: str, log: Path) -> Iterator[LiveServer]:
    """Start a server, wait until it answers, and make sure that it has ended at the end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # so that a signal can be sent to all of its processes
        )
    assert process.stdout is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        first = process.stdout.readline()
        assert " serves at http://" in first, log.read_text()
        watchdog.cancel()
        yield LiveServer(first.split(" serves at ")[1].strip(), process)
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        process.stdout.close()
