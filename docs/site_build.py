"""What mkdocs needs to know of this repository: pages outside of docs/, the list of methods, and docstrings.

Links in the sources are those of the repository, so that they also work where it is browsed. Pages outside of
docs/ join the site, links to them are turned, and links to what the site does not have become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Files of the repository that are pages of the site, by their name there.
OUTSIDE = {f"{name.lower()}.md": f"{name}.md" for name in ("RESULTS", "CHANGELOG", "CONTRIBUTING", "SECURITY")}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """List every page of docs/methods where the navigation has the folder."""
    pages = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "methods").glob("*.md"))
    pages.sort(key=lambda page: not page.endswith("README.md"))  # the overview first
    config.nav = [{"Methods": pages} if entry == {"Methods": "methods/"} else entry for entry in config.nav or []]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/."""
    for name, source in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site."""
    name = page.file.src_uri
    source = ROOT / OUTSIDE.get(name, f"docs/{name}")
    inside = {ROOT / outside: name for name, outside in OUTSIDE.items()}

    def turned(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups(default="")
        path = Path(os.path.normpath(source.parent / target))
        if not path.exists():
            return link.group()  # mkdocs complains about it
        uri = inside.get(path) or (
            path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else ""
        )
        if not uri:
            return text
        relative = os.path.relpath(uri, Path(name).parent).replace(os.sep, "/")
        return f"{picture}[{text}]({relative}{anchor})"

    return _LINK.sub(turned, markdown)


class Docstrings(griffe.Extension):
    """Docstrings as Markdown: roles of reStructuredText become code, and an example is one of ``Examples:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            plain = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", plain, flags=re.MULTILINE)
