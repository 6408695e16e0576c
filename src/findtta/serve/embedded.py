"""The executor 'embedded': replicas of the model in processes of this machine, replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import pickle
import signal
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from findtta._processes import how_ended, ignore_sigint
from findtta.errors import FindTTAError, WorkerError
from findtta.images import Pixels
from findtta.predictor import Predictions
from findtta.serve.engine import Description, Replica, ReplicaDied, Unavailable
from findtta.serve.settings import Choice, Settings

#: What Linux calls the processes.
PROCESS_NAME = "findtta-replica"
#: Attempts in a row to start a process.
_STARTS = 3

_log = logging.getLogger(__name__)


def _context() -> Any:
    """Return how processes are started: by a process that has imported torch, and is good for nothing else.

    A replacement is then there in a fraction of a second. To fork this process could hang the new one.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["findtta.predictor.predictor", __name__])
    return context


def _work(connection: Connection, lifeline: Connection, settings: Settings) -> None:
    """Predict what arrives until the connection closes; the end of the process closes the lifeline."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server decides when what is accepted is done
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROCESS_NAME)
    # Once the server is gone, nothing can be sent any more.
    with contextlib.suppress(EOFError, OSError):
        try:
            replica = Replica(settings)
        except Exception as error:
            connection.send(_portable(error))
            return
        connection.send(replica.description)
        while True:
            batch = connection.recv()
            try:
                predictions: Predictions | Exception = replica(*batch)
            except Exception as error:
                predictions = _portable(error)
            connection.send(predictions)


def _portable(error: Exception) -> Exception:
    """Return an error that another process can read, with its traceback as a note."""
    trace = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = WorkerError(f"{type(error).__name__}: {error}")
    error.add_note(trace)
    return error


class _Worker:
    """A process with a replica, as seen by the server."""

    def __init__(self, settings: Settings) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        # The sentinel of the process will not do: it also reports the end of the process that started it.
        self.lifeline, end = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(theirs, end, settings), daemon=True)
        with ignore_sigint():  # Ctrl-C is for the server alone
            self.process.start()
        for connection in (theirs, end):  # so that the death of the process closes them
            connection.close()

    def ask(self, *batch: Pixels | Choice | None) -> Any:
        """Send a batch, if one is given, and return what the process sends next, or raise the error it sends."""
        try:
            if batch:
                self._connection.send(batch)
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ReplicaDied("the process of the model died.") from error
        if isinstance(message, Exception):
            raise message
        return message


class Workers:
    """Processes with replicas; they start at once, and one that dies is replaced until the ``with`` block ends.

    A process that predicts a batch for longer than a request may take is killed.
    """

    place = "in processes of this machine"
    most_deaths = 5.0

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workers: list[_Worker] = []
        self._closed = False
        self._error: Exception | None = None  # why no process is started any more
        self._up = 0
        self._kept = settings.replicas  # those that are replaced if they die
        # For each replica a thread that waits for its predictions.
        self._threads = ThreadPoolExecutor(settings.replicas)
        self._starts = [self._start() for _ in range(settings.replicas)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for worker in self._workers:
            worker.process.kill()
        self._threads.shutdown(wait=False)

    @property
    def ready(self) -> bool:
        """Whether a process waits for batches or predicts one."""
        return self._up > 0

    @property
    def failed(self) -> bool:
        """Whether every replica was given up because it could not be started, several times in a row."""
        return not self._kept

    async def start(self) -> Description:
        """Wait until all processes have loaded the model; raises what is wrong with the settings."""
        self._idle: asyncio.Queue[_Worker | None] = asyncio.Queue()
        descriptions = [asyncio.get_running_loop().create_future() for _ in self._starts]
        pairs = zip(self._starts, descriptions, strict=True)
        self._keepers = [asyncio.create_task(self._keep(start, described)) for start, described in pairs]
        first, *_ = await asyncio.gather(*descriptions)
        return first

    async def predict(self, images: Pixels, choice: Choice | None = None) -> tuple[Predictions, str]:
        """Have the next idle process predict a batch; raises ``ReplicaDied`` if it dies."""
        worker = await self._idle.get()
        while worker is not None and worker not in self._workers:  # it died while it was idle
            worker = await self._idle.get()
        if worker is None:
            self._idle.put_nowait(None)  # for all that wait
            raise Unavailable(str(self._error))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                predictions = await loop.run_in_executor(self._threads, worker.ask, images, choice)
        except (ReplicaDied, TimeoutError):
            worker.process.kill()
            raise
        except Exception:
            self._idle.put_nowait(worker)
            raise
        self._idle.put_nowait(worker)
        return predictions, worker.process.name

    def _start(self) -> Future[tuple[_Worker, Description]]:
        def start() -> tuple[_Worker, Description]:
            worker = _Worker(self._settings)
            self._workers.append(worker)
            if self._closed:
                worker.process.kill()
            try:
                return worker, worker.ask()
            except ReplicaDied:
                worker.process.join(1)
                raise ReplicaDied(f"its process {how_ended(worker.process)}.") from None

        return self._threads.submit(start)

    async def _keep(
        self, start: Future[tuple[_Worker, Description]], described: asyncio.Future[Description]
    ) -> None:
        """Keep one replica running: wait for its process to start, then to die, and start another."""
        failures = 0
        while True:
            try:
                worker, description = await asyncio.wrap_future(start)
            except Exception as error:
                failures += 1
                is_setting = isinstance(error, FindTTAError) and not isinstance(error, ReplicaDied)
                if failures == _STARTS or (is_setting and not described.done()):
                    self._give_up(error, described, failures)
                    return
                _log.warning("the model could not be started, attempt %d of %d: %s", failures, _STARTS, error)
                await asyncio.sleep(failures / 2)
            else:
                failures = 0
                if not described.done():
                    described.set_result(description)
                await self._use(worker)
                _log.warning("the process of the model %s and is replaced", how_ended(worker.process))
            start = self._start()

    async def _use(self, worker: _Worker) -> None:
        """Offer a process to batches until it dies."""
        loop, died = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(worker.lifeline, died.set)
        self._up += 1
        self._idle.put_nowait(worker)
        try:
            await died.wait()
        finally:
            loop.remove_reader(worker.lifeline)
            self._up -= 1
            self._workers.remove(worker)
            worker.process.kill()
            worker.process.join(1)

    def _give_up(self, error: Exception, described: asyncio.Future[Description], failures: int) -> None:
        if failures == _STARTS:
            error = WorkerError(f"the model could not be started in {failures} attempts; the last: {error}")
        self._error = error
        self._kept -= 1
        if not described.done():
            described.set_exception(error)
        elif self.failed:
            _log.error("%s Restart the server.", error)
            self._idle.put_nowait(None)
