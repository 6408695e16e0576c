"""How a template, the style sheet and the script beside this module become one HTML file that needs no other."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import findtta
from findtta._extras import require


def fill(template: str, purpose: str, **values: Any) -> str:
    """Return a template of this package with its values; ``purpose`` names what needs the extra in an error.

    The template also gets the version, the style sheet, and the script with the hash its security policy names.
    """
    jinja2 = require("jinja2", "report", purpose)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"least": lambda row: min(row.values()), "most": lambda row: max(row.values())}
    script = _text("report.js")
    html: str = environment.from_string(_text(template)).render(
        version=findtta.__version__,
        style=_text("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )
    return html


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
