"""All items on one page, which begins with what of the paper holds, what does not, and what was not run."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from findtta._io import write_file
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.intervals import Interval
from findtta.paper.accuracy_tables import FIND, STREAM_TITLES, AccuracyTable
from findtta.paper.context import Context
from findtta.paper.document import Document
from findtta.paper.items import Item
from findtta.paper.notes import display, fewer_seeds
from findtta.paper.numbers import DATASETS, METHODS, PaperColumn
from findtta.paper.study import Probe, Results, Study
from findtta.tables import Cell, Column, Row, Table, escape_markdown

#: The paper's own methods: neither is an other method to be compared with.
OWN = ("find", "find-star")
RESULTS = "Results: the paper's tables and figures, run again"
HOLDS, FAILS, OPEN, NOT_RUN, NOT_PRINTED = "holds", "does not hold", "cannot be told", "not run", "-"


@dataclass(frozen=True)
class Verdict:
    """Whether FIND is above the best other method in one column of a table, in the paper and here."""

    where: str
    paper: str  # over which method, and by how many points
    ours: str
    over_source: str
    verdict: str


def verdicts(items: Sequence[Item], context: Context, results: Results) -> list[Verdict]:
    """Compare FIND with the best other method of those that were run, column by column, in the paper and here."""
    found = []
    for item in items:
        # A table that is not to be completed compares parts of FIND, not methods.
        if (
            isinstance(item, AccuracyTable)
            and item.complete
            and any(row.name == "find" for row in item.paper.rows)
        ):
            study = Study(context, results)
            columns = {column.name: column for column in (*item.paper.columns, *item.columns(context))}
            found += [_verdict(item, study, column) for column in columns.values() if not column.average_of]
    return found


def _verdict(item: AccuracyTable, study: Study, column: PaperColumn) -> Verdict:
    rows = item.rows(study.context)
    titles = {row.name: item.row_title(row) for row in rows}
    cells = {row.name: item.cell(study, row, column) for row in rows}
    others = {name: cell for name, cell in cells.items() if name in METHODS and name not in OWN}
    own = cells["find"]
    settings = column.settings
    stream = STREAM_TITLES.get(str(settings.get("scenario")), str(settings.get("scenario", "")).capitalize())
    details = [f"{name} {settings[name]}" for name in ("delta", "rounds", "domains") if name in settings]
    details = [detail for detail in details if detail != f"domains {len(MAIN_CORRUPTIONS)}"]
    where = ", ".join([DATASETS[settings["dataset"]], item.network, " ".join([stream, *details])])
    compared = {name: gain for name, cell in others.items() if (gain := own.minus(cell)).mean is not None}
    printed = {name: cell.paper for name, cell in others.items() if cell.paper is not None}
    printed = {name: value for name, value in printed.items() if name in compared or not compared}
    paper, claimed = "-", None
    if own.paper is not None and printed:
        best = max(printed, key=lambda name: printed[name])
        claimed = own.paper - printed[best]
        paper = f"{claimed:+.1f} over {titles[best]}"
    if not compared:
        return Verdict(where, paper, "-", "-", NOT_RUN)
    best, gain = min(compared.items(), key=lambda each: each[1].mean or 0.0)
    over_source = compared["source"].signed_text(1) if "source" in compared else "-"
    ours = f"{gain.signed_text(1)} over {titles[best]}"
    return Verdict(where, paper, ours, over_source, _judge(claimed, gain))


def _judge(claimed: float | None, gain: Cell) -> str:
    if claimed is None or gain.mean is None or gain.margin is None:
        return NOT_PRINTED
    if not Interval(gain.mean, gain.margin).excludes_zero:
        return OPEN
    return HOLDS if (gain.mean > 0) == (claimed > 0) else FAILS


def write_page(
    path: Path,
    pictures: Path,
    items: Sequence[Item],
    documents: Sequence[Document],
    context: Context,
    results: Results,
    *,
    title: str = RESULTS,
    note: str = "",
) -> list[Path]:
    """Write the page, and its figures as PNG files into a folder; return the files."""
    judged = verdicts(items, context, results)
    written = []
    parts = [
        f"# {title}",
        "",
        "## What holds, what does not",
        "",
        f"{FIND} against the best other method that was run, column by column of the paper's tables. Differences "
        "are in points of accuracy, with 95% intervals, paired by sample and clustered by image.",
        "",
        _verdict_table(judged).markdown(),
        "",
        *_summary(judged),
        "",
        "## What was run",
        "",
        *_setups(items, context, results),
        *(["", note] if note else []),
    ]
    for document in documents:
        links = {}
        for picture, stem in document.stems():
            file = pictures / f"{stem}.png"
            write_file(file, picture.render()["png"])
            written.append(file)
            links[stem] = os.path.relpath(file, path.parent)
        parts += ["", document.markdown(level=2, links=links).rstrip()]
    parts += [
        "",
        "## How this page is made",
        "",
        "One command writes it from stored runs; nothing in it is typed by hand:",
        "",
        f"```\n{context.command}\n```",
    ]
    write_file(path, ("\n".join(parts) + "\n").encode())
    return [path, *written]


def _setups(items: Sequence[Item], context: Context, results: Results) -> list[str]:
    """Return in a line for each setup what it was run with; those that were not run are left out."""
    lines = []
    for setup in context.setups:
        alone = dataclasses.replace(context, setups=(setup,))
        asked = ((one, results.get(one)) for item in items for one in item.asked(alone))
        found = [(one, result) for one, result in asked if result is not None]
        if not found:
            continue
        seeds = sorted({(one.spec if isinstance(one, Probe) else one).seed for one, _ in found})
        some = fewer_seeds(dataclasses.replace(alone, seeds=tuple(seeds)), Results(found))
        network = setup.network or ("the transformer" if setup.fits("EfficientViT-M5") else "every ResNet")
        images = context.images_of(setup)
        fewer = "".join(f", {context.images_of(setup, name)} for {display(name)}" for name in setup.images_of)
        computed = f"; computed in {setup.precision}" * (setup.precision != "float32")
        lines.append(
            f"- {setup.title}: `{Path(setup.model).name}` in the place of {network} of the paper; "
            f"{'all' if images is None else images} images per domain{fewer}; "
            f"batches of {context.batch_size}; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            f"{', some methods fewer' if some else ''}{computed}."
        )
    return lines


def _verdict_table(judged: Sequence[Verdict]) -> Table:
    titles = (
        f"{FIND} over the best other method run here, paper",
        "here",
        f"{FIND} over Source, here",
        "above or below it, as in the paper?",
    )
    return Table(
        title="",
        row_titles=("the paper's data, network, stream",),
        columns=tuple(Column(title=title, kind="text", unit="") for title in titles),
        rows=tuple(
            Row(
                (one.where,),
                tuple(Cell(text=text) for text in (one.paper, one.ours, one.over_source, one.verdict)),
            )
            for one in judged
            if one.verdict != NOT_RUN
        ),
    )


def _summary(judged: Sequence[Verdict]) -> list[str]:
    titles = {
        HOLDS: "Holds here",
        FAILS: "Does not hold here",
        OPEN: "Cannot be told from these runs (the interval includes 0)",
        NOT_PRINTED: "The paper has no number",
        NOT_RUN: "Not run",
    }
    lines = []
    for verdict, title in titles.items():
        places = [one.where for one in judged if one.verdict == verdict]
        if verdict == NOT_PRINTED and not places:
            continue
        lines.append(f"- *{title}*: {len(places)} of {len(judged)}.")
        if verdict == NOT_RUN and places:
            lines[-1] += f" {escape_markdown('; '.join(places))}."
    return lines
