"""Requests with known answers: images that no other request carries, and poisoned inputs in between."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from findtta.loadtest.pictures import Picture, Pictures

#: What a server says to a request that it cannot serve and never will.
REJECTED = frozenset({400, 413, 415, 422})
ANSWERED = frozenset({200})


@dataclass(frozen=True)
class Payload:
    """The body of one request, and what a right answer to it is.

    Attributes:
        kind: What it is, such as ``"png"`` or ``"truncated-jpeg"``.
        body: The bytes to send.
        content_type: What they are declared as.
        digests: Of the images, in the order of the predictions.
        accepts: The statuses that are right.
        poisoned: Whether it is meant to make trouble.
        may_break: Whether the server may hang up instead of answering, as it may before a body that it will
            not read.
    """

    kind: str
    body: bytes
    content_type: str
    digests: tuple[str, ...] = ()
    accepts: frozenset[int] = ANSWERED
    poisoned: bool = False
    may_break: bool = False


@dataclass(frozen=True)
class Mixture:
    """Which request carries what; a pure function of the seed and the number of the request.

    Attributes:
        pictures: Where good images come from.
        poisons: Poisoned inputs, sent in turn.
        bad: The share of poisoned requests.
        per_request: Images in each good request.
        seed: Decides which requests are poisoned.
    """

    pictures: Pictures
    poisons: tuple[Payload, ...]
    bad: float
    per_request: int
    seed: int

    def choices(self, count: int) -> list[int]:
        """Return for each request the position of its poison, or -1 for a good one."""
        draws = np.random.default_rng([self.seed, 1]).random(count) < self.bad
        # In turn, so that even a short test meets every poison.
        turn = (np.cumsum(draws) - 1) % max(len(self.poisons), 1)
        return [int(position) for position in np.where(draws, turn, -1)]

    def payload(self, number: int, poison: int) -> Payload:
        """Return what request ``number`` carries.

        Args:
            number: The number of the request.
            poison: What :meth:`choices` says of it.

        Returns:
            The payload; good ones are unlike those of all other numbers.
        """
        if poison >= 0:
            return self.poisons[poison]
        first = number * self.per_request
        return good([self.pictures.numbered(first + step) for step in range(self.per_request)], number)


def good(pictures: Sequence[Picture], number: int = 0) -> Payload:
    """Return a request for one picture or several.

    Args:
        pictures: What to classify.
        number: Of the request; odd ones wrap several pictures into JSON, even ones into a form.

    Returns:
        A payload that must be answered.
    """
    digests = tuple(digest(picture.data) for picture in pictures)
    if len(pictures) == 1:
        return Payload(pictures[0].format, pictures[0].data, pictures[0].media_type, digests)
    if number % 2:
        encoded = [base64.b64encode(picture.data).decode() for picture in pictures]
        return Payload("json", json.dumps({"images": encoded}).encode(), "application/json", digests)
    boundary = f"findtta-{digests[0]}"
    return Payload("form", _form(pictures, boundary), f"multipart/form-data; boundary={boundary}", digests)


def digest(data: bytes) -> str:
    """Return what the server calls the digest of an image: the beginning of the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def _form(pictures: Sequence[Picture], boundary: str) -> bytes:
    parts = bytearray()
    for position, picture in enumerate(pictures):
        name = f"{position}.{picture.format}"
        parts += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n'
            f"Content-Type: {picture.media_type}\r\n\r\n"
        ).encode()
        parts += picture.data + b"\r\n"
    return bytes(parts + f"--{boundary}--\r\n".encode())
