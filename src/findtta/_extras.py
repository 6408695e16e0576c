"""The gate to optional dependencies: each belongs to an extra of the package, and is imported when first used."""

import importlib
import importlib.util
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from findtta.errors import MissingExtraError


def installed(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is part of is not there
        return False


def require(module: str, extra: str, purpose: str) -> Any:
    """Import an optional dependency, or raise an error that names its purpose and how to install its extra."""
    require_installed(module, extra, purpose)
    return importlib.import_module(module)


def require_installed(module: str, extra: str, purpose: str) -> None:
    """Raise the error of ``require`` without importing anything."""
    if not installed(module):
        raise MissingExtraError(f"{purpose} needs the {extra!r} extra: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where this package comes from: a clone, a URL or an index."""
    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file():
        return f'pip install -e "{clone}[{extra}]"'
    try:
        record = json.loads(metadata.distribution("findtta").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        record = {}
    version_control = f"{record['vcs_info']['vcs']}+" if "vcs_info" in record else ""
    origin = f" @ {version_control}{record['url']}" if "url" in record else ""
    return f'pip install "findtta[{extra}]{origin}"'
