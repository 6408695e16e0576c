"""One try at one request over HTTP."""

from __future__ import annotations

import importlib
import io
import math
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from findtta.errors import InputError, MissingExtraError
from findtta.loadtest.payloads import Payload
from findtta.loadtest.settings import LoadOptions

if TYPE_CHECKING:
    import aiohttp

#: Servers drop connections that were idle for about five seconds; a request sent at that moment would seem lost.
_IDLE_SECONDS = 2.0
#: Larger bodies are sent piece by piece, so that other requests get their turn.
_AT_ONCE = 2**20
_HEALTH_SECONDS = 10.0


@dataclass(frozen=True)
class Reply:
    """What came of one try.

    Attributes:
        status: Of the answer; None if there was none.
        body: Of the answer, or why there was none.
        retry_after: Seconds that the server asks to wait before the next try.
        hung_up: Whether the server closed the connection without an answer.
    """

    status: int | None
    body: bytes
    retry_after: float | None = None
    hung_up: bool = False

    @property
    def broken(self) -> bool:
        """Whether the request got nothing that it could use, though the server did not turn it away."""
        return self.status is None or (self.status >= 500 and self.status != 503)

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request may fare better another time."""
        return self.status is None or self.status >= 500


class Client:
    """Connections to a server, for use with ``async with``."""

    def __init__(self, options: LoadOptions) -> None:
        self._http = import_aiohttp()
        self._options = options
        self._base = options.url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        self._session = self._http.ClientSession(
            connector=self._http.TCPConnector(limit=self._options.concurrency, keepalive_timeout=_IDLE_SECONDS),
            timeout=self._http.ClientTimeout(total=self._options.timeout),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.close()

    async def require_health(self) -> None:
        """Raise unless a server is there and says it is well.

        Raises:
            InputError: If not.
        """
        url = f"{self._base}/healthz"
        try:
            async with self._open.get(url, timeout=self._http.ClientTimeout(total=_HEALTH_SECONDS)) as response:
                status = response.status
        except (self._http.ClientError, TimeoutError, OSError, ValueError) as error:
            raise InputError(
                f"url: a server must answer at {url}, but none does ({_reason(error)}). "
                "Start it, or give its --url."
            ) from error
        if status != 200:
            raise InputError(f"url: {url} must answer 200, but answers {status}. Wait until the server is ready.")

    async def post(self, payload: Payload, request_id: str) -> Reply:
        """Send a request once.

        Args:
            payload: What to send.
            request_id: Its identity, the same for every try.

        Returns:
            The answer, or why there is none.
        """
        body: Any = payload.body if len(payload.body) <= _AT_ONCE else io.BytesIO(payload.body)
        headers = {"X-Request-ID": request_id, "Content-Type": payload.content_type}
        try:
            async with self._open.post(f"{self._base}/v1/predict", data=body, headers=headers) as response:
                answer = await response.read()
                return Reply(response.status, answer, _seconds(response.headers.get("Retry-After")))
        except (self._http.ClientError, TimeoutError, OSError) as error:
            there = not isinstance(error, TimeoutError | self._http.ClientConnectorError)
            return Reply(None, _reason(error).encode(), hung_up=there)

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the client is used inside 'async with' only"
        return self._session


def import_aiohttp() -> Any:
    """Return the module, or say which extra brings it."""
    try:
        return importlib.import_module("aiohttp")
    except ImportError as error:
        raise MissingExtraError("load tests need the 'serve' extra: pip install \"findtta[serve]\"") from error


def _seconds(header: str | None) -> float | None:
    # The header may hold a date as well; whoever sends one is retried after the usual wait.
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
