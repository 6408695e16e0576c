"""``findtta streams show``: which domains each batch of a stream has."""

import argparse
import shutil
from dataclasses import fields
from pathlib import Path

from findtta.bench.plan import RunSpec
from findtta.cli.flags import add_flags, given, names
from findtta.cli.output import print_text
from findtta.streams import SCENARIOS, STREAM, Stream, make, parse, summarize
from findtta.tables import render

PAPER_FIGURE = ("static", "crossmix", "shuffle", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta streams``."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the streams and their settings")
    listing.set_defaults(action=_list)
    show = actions.add_parser("show", help="draw streams in the terminal or into a file, and summarize them")
    show.set_defaults(action=_show)
    add_flags(show, RunSpec, ("data", "images", "batch_size", "seed"))
    show.add_argument(
        "--stream",
        nargs="+",
        default=list(PAPER_FIGURE),
        metavar="NAME[:SETTING=VALUE,...]",
        help=f"such as wild:delta=0.01, among {', '.join(SCENARIOS)}, or file.py:NAME (default: "
        f"{' '.join(PAPER_FIGURE)})",
    )
    show.add_argument("--domains", nargs="+", metavar="NAME", help="domains, such as fog, fog@3 or clean")
    show.add_argument("--severity", nargs="+", type=int, metavar="N", help="severities of domains without one")
    show.add_argument("-o", "--output", metavar="FILE", type=Path, help="draw a .png, .svg or .pdf file, not text")


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    return int(arguments.action(arguments))


def _list(arguments: argparse.Namespace) -> int:
    rows = [
        (name, kind.summary, ", ".join(f"{each.name}={each.default}" for each in fields(kind)))
        for name, kind in STREAM.available().items()
    ]
    print(render(("stream", "what arrives", "settings"), rows))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    wanted = [parse(text) for text in names(arguments.stream) or ()]  # before anything slow

    from findtta.data.open import load
    from findtta.streams.plot import draw, legend, save_figure

    spec = RunSpec(**given(arguments, RunSpec, ("data", "images", "batch_size", "seed")))
    dataset = load(spec.data)
    width = shutil.get_terminal_size().columns
    streams: list[Stream] = []
    for name, settings in wanted:
        chosen = names(arguments.domains), arguments.severity, spec.images, spec.seed
        part = STREAM.load(name).part(dataset, *chosen)
        stream = make(name, part, batch_size=spec.batch_size, seed=spec.seed, **settings)
        streams.append(stream)
        written = ",".join(f"{key}={value}" for key, value in stream.settings.items())
        print(f"{name}:{written}" if written else name, STREAM.load(name).summary, sep=": ")
        if not arguments.output:
            print_text(draw(stream, width))
        print(f"{summarize(stream, part)}\n")
    if arguments.output:
        save_figure(streams, arguments.output)
        print(f"drawn into {arguments.output}")
    else:
        print_text(legend())
    return 0
