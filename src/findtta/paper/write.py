"""Writing a document: for the terminal, as Markdown, LaTeX and JSON, and its figures as SVG and PNG."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from findtta._io import finite, write_file
from findtta.paper.document import Cell, Column, Document, Picture, Table
from findtta.plots import render

NOTHING = "-"
_WIDTH = 100


@dataclass(frozen=True)
class Shown:
    """A column as it is shown; a compared one becomes three.

    Attributes:
        over: The heading that it shares with its neighbours; empty if it stands alone.
        title: Its own heading.
        role: Whether its numbers are the paper's, ours, their difference, or texts.
        texts: What it shows in every row.
    """

    over: str
    title: str
    role: Literal["paper", "ours", "difference", "text"]
    texts: tuple[str, ...]


def shown_columns(table: Table) -> list[Shown]:
    """Return the columns of a table as they are shown."""
    shown = []
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in table.rows]
        if column.kind == "compared":
            shown += [
                Shown(column.title, "paper", "paper", _texts(_paper_text, cells, column)),
                Shown(column.title, "ours", "ours", _texts(_ours_text, cells, column)),
                Shown(column.title, "difference", "difference", _texts(_difference_text, cells, column)),
            ]
        elif column.kind == "paper":
            shown.append(Shown("", column.title, "paper", _texts(_paper_text, cells, column)))
        elif column.kind == "ours":
            shown.append(Shown("", column.title, "ours", _texts(_ours_text, cells, column)))
        else:
            shown.append(Shown("", column.title, "text", tuple(cell.text or NOTHING for cell in cells)))
    return shown


def terminal(document: Document) -> str:
    """Return a document for the terminal."""
    parts = [document.title, "=" * len(document.title)]
    for table in document.tables:
        parts += ["", table.title, "", _terminal_table(table)]
    for title, lines in (("notes", document.notes), ("made from", provenance_lines(document))):
        if lines:
            parts += ["", f"{title}:", *(_bullet(line) for line in lines)]
    return "\n".join(parts)


def markdown(document: Document) -> str:
    """Return a document as Markdown; its figures are linked as files beside it."""
    parts = [f"# {_markdown_text(document.title)}", ""]
    for table in document.tables:
        parts += [f"**{_markdown_text(table.title)}**", "", _markdown_table(table), ""]
    for picture in document.pictures:
        parts += [f"![{_markdown_text(picture.title)}]({picture_stem(document, picture)}.svg)", ""]
    for title, lines in (("Notes", document.notes), ("Made from", provenance_lines(document))):
        if lines:
            parts += [f"{title}:", "", *(f"- {_markdown_text(line)}" for line in lines), ""]
    return "\n".join(parts)


def latex(document: Document) -> str:
    """Return the tables of a document as LaTeX, for the package ``booktabs``, with its notes as comments."""
    comments = [f"% {line}" for line in (*document.notes, *provenance_lines(document))]
    tables = [_latex_table(document, table, number) for number, table in enumerate(document.tables, start=1)]
    head = [f"% {document.title}", "% Needs \\usepackage{booktabs}."]
    return "\n".join([*head, *(comment.replace("\n", " ") for comment in comments), "", *tables])


def to_json(document: Document) -> str:
    """Return a document as JSON; numbers that are not finite become null."""
    return json.dumps(finite(document.to_dict()), indent=1, sort_keys=True, ensure_ascii=False)


#: How a document is written, by the ending of the file.
WRITERS: Mapping[str, Callable[[Document], str]] = {
    ".txt": terminal,
    ".md": markdown,
    ".tex": latex,
    ".json": to_json,
}


def save(document: Document, folder: Path) -> list[Path]:
    """Write a document in all formats; no file is ever there half-written.

    Args:
        document: The document.
        folder: Where to; it is made if need be.

    Returns:
        The files.
    """
    contents = {f"{document.id}{ending}": write(document) + "\n" for ending, write in WRITERS.items()}
    files = {folder / name: content.encode() for name, content in contents.items()}
    for picture in document.pictures:
        stem = picture_stem(document, picture)
        files |= {folder / f"{stem}.{kind}": content for kind, content in draw(picture).items()}
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def picture_stem(document: Document, picture: Picture) -> str:
    """Return the name of a picture's files, without their ending."""
    return f"{document.id}-{picture.name}" if picture.name else document.id


def draw(picture: Picture) -> dict[str, bytes]:
    """Return a picture as SVG and as PNG; the same numbers always give the same bytes."""
    return render(picture.draw, picture.size, title=picture.title)


def provenance_lines(document: Document) -> list[str]:
    """Return in words what the numbers of a document come from; the JSON has all of it."""
    record = document.provenance
    if not record:
        return []
    seeds = ", ".join(map(str, record["seeds"]))
    lines = [f"findtta {record['findtta']}; seeds {seeds}; batches of {record['batch_size']}; {record['device']}"]
    for setup in record["setups"]:
        images = " or ".join(f"{count:,}" for count in setup["images_per_domain"])
        domains = " or ".join(map(str, setup["domains"]))
        lines.append(
            f"{setup['data']} (identity {', '.join(setup['identities'])}) for {setup['stands_for']}: {images} "
            f"images in each of {domains} domains; {setup['model']}, weights {setup['weights'][:12]}"
        )
    lines.append(
        f"runs: {len(record['runs'])}, streams: {len(record['streams'])}, readings: {len(record['readings'])}"
    )
    return [*lines, *([f"command: {record['command']}"] if record["command"] else [])]


def _texts(text: Callable[[Cell, Column], str], cells: Iterable[Cell], column: Column) -> tuple[str, ...]:
    return tuple(text(cell, column) for cell in cells)


def _paper_text(cell: Cell, column: Column) -> str:
    if cell.paper is None:
        return NOTHING
    spread = "" if cell.spread is None else f" ± {cell.spread:.1f}"
    return f"{cell.paper:.{column.decimals}f}{spread}"


def _ours_text(cell: Cell, column: Column) -> str:
    if cell.ours is None:
        return cell.text or NOTHING
    deviation = "" if cell.deviation is None else f" ± {cell.deviation:.{column.decimals}f}"
    in_part = f" (in part {cell.text})" if cell.text else ""
    return f"{cell.ours:.{column.decimals}f}{deviation}{in_part}"


def _difference_text(cell: Cell, column: Column) -> str:
    return NOTHING if cell.difference is None else f"{cell.difference:+.{column.decimals}f}"


def _terminal_table(table: Table) -> str:
    columns = shown_columns(table)
    titles = [row.title for row in table.rows]
    first = max(map(len, (table.row_title, *titles)))
    widths = [max(map(len, (column.title, *column.texts))) for column in columns]
    spans = _spans(columns)
    for over, start, end in spans:  # a long heading widens the last column below it
        widths[end - 1] += max(0, len(over) - sum(widths[start:end]) - 2 * (end - start - 1))

    def line(head: str, texts: Sequence[str]) -> str:
        aligned = [
            text.ljust(width) if column.role == "text" else text.rjust(width)
            for text, width, column in zip(texts, widths, columns, strict=True)
        ]
        return "  ".join([head.ljust(first), *aligned]).rstrip()

    lines = []
    if any(over for over, _, _ in spans):
        lines.append(
            "  ".join(
                ["".ljust(first)]
                + [over.center(sum(widths[start:end]) + 2 * (end - start - 1)) for over, start, end in spans]
            ).rstrip()
        )
    lines += [
        line(table.row_title, [column.title for column in columns]),
        line("-" * first, ["-" * width for width in widths]),
    ]
    return "\n".join(
        lines + [line(title, [column.texts[row] for column in columns]) for row, title in enumerate(titles)]
    )


def _spans(columns: Sequence[Shown]) -> list[tuple[str, int, int]]:
    """Return the shared headings with the first column below each and the one after the last."""
    spans: list[tuple[str, int, int]] = []
    for index, column in enumerate(columns):
        # "paper" begins a group, so that two groups of the same name stay apart.
        if spans and column.over and spans[-1][0] == column.over and column.title != "paper":
            spans[-1] = (column.over, spans[-1][1], index + 1)
        else:
            spans.append((column.over, index, index + 1))
    return spans


def _bullet(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  "))


def _markdown_table(table: Table) -> str:
    columns = shown_columns(table)
    titles = [f"{column.over}: {column.title}" if column.over else column.title for column in columns]
    rows = [
        [table.row_title, *titles],
        ["---", *("---" if column.role == "text" else "---:" for column in columns)],
        *([row.title, *(column.texts[index] for column in columns)] for index, row in enumerate(table.rows)),
    ]
    return "\n".join(
        f"| {' | '.join(texts if number == 1 else map(_markdown_text, texts))} |"
        for number, texts in enumerate(rows)
    )


def _markdown_text(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|#" else character for character in text)


def _latex_table(document: Document, table: Table, number: int) -> str:
    columns = shown_columns(table)
    spans = _spans(columns)
    body = []
    if any(over for over, _, _ in spans):
        heads = [f"\\multicolumn{{{end - start}}}{{c}}{{{_latex_text(over)}}}" for over, start, end in spans]
        rules = [f"\\cmidrule(lr){{{start + 2}-{end + 1}}}" for over, start, end in spans if over]
        body += [f" & {' & '.join(heads)} \\\\", " ".join(rules)]
    body.append(_latex_row([table.row_title, *(column.title for column in columns)]))
    body.append("\\midrule")
    body += [
        _latex_row([row.title, *(column.texts[index] for column in columns)])
        for index, row in enumerate(table.rows)
    ]
    layout = "l" + "".join("l" if column.role == "text" else "r" for column in columns)
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_latex_text(f'{document.title}. {table.title}')}}}",
            f"\\label{{tab:{document.id}-{number}}}",
            f"\\begin{{tabular}}{{{layout}}}",
            "\\toprule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _latex_row(texts: Iterable[str]) -> str:
    return f"{' & '.join(map(_latex_text, texts))} \\\\"


_LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "±": r"$\pm$",
}


def _latex_text(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    is_signed = text[:1] in "+-" and text[1:2].isdigit()
    return f"${escaped[0]}${escaped[1:]}" if is_signed else escaped
