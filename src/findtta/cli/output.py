"""Printing: text that the terminal may not have all characters for, JSON, and messages."""

import json
import sys
from typing import Any

from tqdm import tqdm

from findtta._io import finite

_PLAIN = {"±": "+-", "\N{GREEK SMALL LETTER ALPHA}": "alpha", "░": ".", "▒": ":", "▓": "#", "█": "@"}


def print_text(text: str) -> None:
    """Print a text, with other characters in place of those that the terminal does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for character, plain in _PLAIN.items():
            text = text.replace(character, plain)
        text = text.encode(encoding, "replace").decode(encoding)
    print(text, flush=True)


def print_json(value: Any) -> None:
    """Print plain values as JSON, with null for NaN and infinity."""
    print(json.dumps(finite(value), indent=1))


def tell(message: str, *, quiet: bool = False) -> None:
    """Print a message on standard error, above the progress bar if there is one."""
    if not quiet:
        with tqdm.external_write_mode(file=sys.stderr):
            print(message, file=sys.stderr)
