"""A real ``findtta serve`` in processes of its own."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_START = """
import argparse, sys
from findtta.cli import serve
parser = argparse.ArgumentParser()
serve.add_arguments(parser)
sys.exit(serve.run(parser.parse_args()))
"""


@dataclass
class LiveServer:
    url: str
    process: subprocess.Popen[str]

    def model_processes(self) -> list[int]:
        """The copies of the model among the processes that this server started."""
        children: dict[int, list[int]] = {}
        titles = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
                titles[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
        found, todo = [], [self.process.pid]
        while todo:
            below = children.get(todo.pop(), [])
            todo += below
            found += [pid for pid in below if "ServeReplica:findtta:Model" in titles.get(pid, "")]
        return found


@contextlib.contextmanager
def live_server(*arguments: str, log: Path) -> Iterator[LiveServer]:
    """Start a server, wait until it answers, and make sure that it is gone at the end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert " answers at http://" in first, log.read_text()
        yield LiveServer(first.split(" answers at ")[1].strip(), process)
    finally:
        if process.poll() is None:
            process.terminate()
            deadline = time.monotonic() + 20
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            process.kill()
            process.wait()
        process.stdout.close()
