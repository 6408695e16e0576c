"""The document that an item comes to: tables with the paper's numbers beside ours, figures, notes, provenance.

It is written for the terminal, as Markdown, LaTeX and JSON, and its figures as SVG and PNG.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from findtta._io import finite, write_file
from findtta.plots import Panel, draw_panels, panel_grid, render
from findtta.tables import Table, escape_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure that can be drawn."""

    title: str
    draw: Callable[[Figure], None]  # draws it on an empty figure
    name: str = ""  # the end of its file name
    size: tuple[float, float] = (7.0, 4.0)  # width and height in inches
    data: Mapping[str, Any] = field(default_factory=dict)  # the numbers behind it, as plain values

    def render(self) -> dict[str, bytes]:
        """Return it as SVG and as PNG; the same numbers always give the same bytes."""
        return render(self.draw, self.size, title=self.title)


def picture(title: str, panels: Sequence[Panel], name: str = "", columns: int | None = None) -> list[Picture]:
    """Return the panels that have a series as one figure, or nothing if there are none."""
    shown = [panel for panel in panels if panel.series]
    if not shown:
        return []
    count, size = panel_grid(shown, columns)
    data = {"panels": [finite(dataclasses.asdict(panel)) for panel in shown]}
    draw = functools.partial(draw_panels, panels=shown, columns=count)
    return [Picture(name=name, title=title, draw=draw, size=size, data=data)]


@dataclass(frozen=True, kw_only=True)
class Document:
    """What an item of the paper comes to."""

    id: str
    title: str
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()  # where the setting differs from the paper's, what failed, and the like
    provenance: Mapping[str, Any] = field(default_factory=dict)  # what our numbers come from

    @property
    def has_results(self) -> bool:
        """Whether it has anything of ours, and not the paper's numbers only."""
        return bool(self.provenance.get("runs") or self.provenance.get("readings"))

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain values that JSON can write."""
        return {
            "id": self.id,
            "title": self.title,
            "tables": [table.to_dict() for table in self.tables],
            "pictures": [
                {"name": picture.name, "title": picture.title, "data": dict(picture.data)}
                for picture in self.pictures
            ],
            "notes": list(self.notes),
            "provenance": dict(self.provenance),
        }

    def text(self) -> str:
        """Return the document for the terminal."""
        parts = [self.title, "=" * len(self.title)]
        for table in self.tables:
            parts += ["", table.title, "", table.text()]
        for title, lines in self._lists().items():
            parts += ["", f"{title.lower()}:"]
            parts += [textwrap.fill(f"- {line}", _WIDTH, subsequent_indent="  ") for line in lines]
        return "\n".join(parts)

    def markdown(self, level: int = 1, links: Mapping[str, str] | None = None) -> str:
        """Return the document as Markdown; its figures are linked as files beside it, or as ``links`` has them."""
        links = links or {stem: f"{stem}.svg" for _, stem in self.stems()}
        parts = [f"{'#' * level} {escape_markdown(self.title)}", ""]
        for table in self.tables:
            parts += [f"**{escape_markdown(table.title)}**", "", table.markdown(), ""]
        for picture, stem in self.stems():
            parts += [f"![{escape_markdown(picture.title)}]({links[stem]})", ""]
        for title, lines in self._lists().items():
            parts += [f"{title}:", "", *(f"- {escape_markdown(line)}" for line in lines), ""]
        return "\n".join(parts)

    def latex(self) -> str:
        """Return the tables as LaTeX, for the package ``booktabs``, with the notes as comments."""
        lines = [line for of_list in self._lists().values() for line in of_list]
        comments = [" ".join(f"% {line}".splitlines()) for line in lines]
        tables = [
            table.latex(f"{self.title}. {table.title}", f"{self.id}-{number}")
            for number, table in enumerate(self.tables, start=1)
        ]
        return "\n".join([f"% {self.title}", "% Needs \\usepackage{booktabs}.", *comments, "", *tables])

    def json(self) -> str:
        """Return the document as JSON; numbers that are not finite become null."""
        return json.dumps(finite(self.to_dict()), indent=1, sort_keys=True, ensure_ascii=False)

    def save(self, folder: Path) -> list[Path]:
        """Write the document into a folder in all formats, each file atomically, and return the files."""
        texts = {"txt": self.text(), "md": self.markdown(), "tex": self.latex(), "json": self.json()}
        files = {folder / f"{self.id}.{ending}": f"{text}\n".encode() for ending, text in texts.items()}
        for picture, stem in self.stems():
            files |= {folder / f"{stem}.{ending}": content for ending, content in picture.render().items()}
        for path, content in files.items():
            write_file(path, content)
        return list(files)

    def stems(self) -> list[tuple[Picture, str]]:
        """Return the figures with the names of their files, without endings."""
        return [(one, f"{self.id}-{one.name}" if one.name else self.id) for one in self.pictures]

    def _lists(self) -> dict[str, Sequence[str]]:
        """Return the notes and what the numbers come from, by their titles, where there are any."""
        lists = {"Notes": self.notes, "Made from": self._origin() if self.provenance else ()}
        return {title: lines for title, lines in lists.items() if lines}

    def _origin(self) -> list[str]:
        """Return in words what the numbers come from; the JSON has all of it."""
        record = self.provenance
        seeds = ", ".join(map(str, record["seeds"]))
        lines = [
            f"findtta {record['findtta']}; seeds {seeds}; batches of {record['batch_size']}; {record['device']}"
        ]
        for setup in record["setups"]:
            images = " or ".join(f"{count:,}" for count in setup["images_per_domain"])
            domains = " or ".join(map(str, setup["domains"]))
            lines.append(
                f"{setup['data']} (identity {', '.join(setup['identities'])}) for {setup['stands_for']}: {images} "
                f"images in each of {domains} domains; {setup['model']}, weights {setup['weights'][:12]}"
            )
        lines += [f"{stream}: {composition}" for stream, composition in record["compositions"].items()]
        counts = [f"{name}: {len(record[name])}" for name in ("runs", "streams", "readings")]
        return [*lines, ", ".join(counts), *([f"command: {record['command']}"] if record["command"] else [])]
