"""Whether an answer is the right one to its request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from findtta.loadtest.payloads import Payload

#: right: what a correct server says; refused: turned away with 503; lost: no answer; swapped: the answer to
#: another request; unexpected: any other answer than the right one.
Fate = Literal["right", "refused", "lost", "swapped", "unexpected"]

FULL = 503


@dataclass(frozen=True)
class Verdict:
    """What became of a request.

    Attributes:
        fate: The outcome.
        why: What is wrong, if something is.
    """

    fate: Fate
    why: str = ""


RIGHT = Verdict("right")


def judge(payload: Payload, request_id: str, status: int, body: bytes) -> Verdict:
    """Compare an answer with what its request must get.

    Args:
        payload: What was sent.
        request_id: The identity it was sent under.
        status: The status of the answer.
        body: The body of the answer.

    Returns:
        The verdict.
    """
    if status == FULL:
        return Verdict("refused", "503")
    if status not in payload.accepts:
        why = f"{status}: {body[:200].decode(errors='replace')}"
        # A server that fails over a good image owes its answer; failing over a bad one is a wrong answer.
        return Verdict("lost" if status >= 500 and not payload.poisoned else "unexpected", why)
    try:
        answer = json.loads(body, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return Verdict("unexpected", f"{status} without JSON: {body[:200].decode(errors='replace')}")
    if not isinstance(answer, dict):
        return Verdict("unexpected", f"{status} must come with an object, but came with {_short(answer)}")
    return _judge_predictions(payload, request_id, answer) if status == 200 else _judge_error(status, answer)


def _judge_predictions(payload: Payload, request_id: str, answer: dict[str, Any]) -> Verdict:
    if answer.get("request_id") != request_id:
        return Verdict("swapped", f"request_id must be {request_id}, got {_short(answer.get('request_id'))}")
    predictions = answer.get("predictions")
    if not isinstance(predictions, list) or len(predictions) != len(payload.digests):
        return Verdict("unexpected", f"predictions must be {len(payload.digests)}, got {_short(predictions)}")
    for prediction, digest in zip(predictions, payload.digests, strict=True):
        if not isinstance(prediction, dict) or not isinstance(prediction.get("digest"), str):
            return Verdict("unexpected", f"a prediction must have a digest, got {_short(prediction)}")
        if prediction["digest"] != digest:
            return Verdict("swapped", f"digest must be {digest}, got {_short(prediction['digest'])}")
        if not _is_sane(prediction):
            return Verdict(
                "unexpected",
                f"a prediction must have a label, an index and a confidence from 0 to 1, got {_short(prediction)}",
            )
    return RIGHT


def _is_sane(prediction: dict[str, Any]) -> bool:
    index, confidence = prediction.get("index"), prediction.get("confidence")
    return (
        isinstance(prediction.get("label"), str)
        and isinstance(index, int)
        and index >= 0
        and isinstance(confidence, int | float)
        and 0 <= confidence <= 1
    )


def _judge_error(status: int, answer: dict[str, Any]) -> Verdict:
    error = answer.get("error")
    if isinstance(error, dict) and error.get("code") and error.get("message"):
        return RIGHT
    return Verdict("unexpected", f"{status} must say error.code and error.message, but says {_short(answer)}")


def _not_json(constant: str) -> None:
    # Python reads NaN and Infinity, other languages refuse the whole answer.
    raise ValueError(constant)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
