"""Show streams: which domains each batch has, scenario by scenario."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from findtta.cli.lists import names
from findtta.data.dataset import DomainDataset
from findtta.streams import SCENARIOS, Stream, make, parse, summarize
from findtta.streams.plot import ASCII, BLOCKS, can_show, draw, legend

PAPER_FIGURE = ("static", "crossmix", "shuffle", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta streams``."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="draw streams in the terminal or as a picture")
    show.add_argument(
        "--data", default="shapes", metavar="NAME|PATH", help="the dataset (default: shapes, drawn on the spot)"
    )
    show.add_argument(
        "--stream",
        nargs="+",
        default=list(PAPER_FIGURE),
        metavar="NAME[:SETTING=VALUE,...]",
        help=f"scenarios, such as wild:delta=0.01; known are {', '.join(SCENARIOS)} "
        f"(default: {' '.join(PAPER_FIGURE)})",
    )
    show.add_argument("--domains", nargs="+", metavar="NAME", help="domains, such as fog, fog@3 or clean")
    show.add_argument("--severity", nargs="+", type=int, metavar="N", help="severities of domains without one")
    show.add_argument("--limit", type=int, metavar="N", help="at most so many images per domain")
    show.add_argument("--batch-size", type=int, default=64, metavar="N", help="samples per batch (default: 64)")
    show.add_argument("--seed", type=int, default=0, help="seed of the streams (default: 0)")
    show.add_argument("-o", "--output", metavar="FILE", help="draw a picture (.png, .svg or .pdf) instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Draw the streams and print a summary of each."""
    wanted = [parse(text) for text in names(arguments.stream) or ()]  # before anything slow
    dataset = _load(arguments.data)
    width = shutil.get_terminal_size().columns
    shades = BLOCKS if can_show(BLOCKS, sys.stdout.encoding) else ASCII
    streams: list[Stream] = []
    for name, settings in wanted:
        part = SCENARIOS[name].part(dataset, names(arguments.domains), arguments.severity, arguments.limit)
        stream = make(name, part, batch_size=arguments.batch_size, seed=arguments.seed, **settings)
        streams.append(stream)
        print(f"{_written(stream)}: {SCENARIOS[name].summary}")
        if not arguments.output:
            print(draw(stream, width, shades))
        print(f"{summarize(stream, part)}\n")
    if arguments.output:
        from findtta.streams.plot import save_figure

        save_figure(streams, Path(arguments.output))
        print(f"drawn into {arguments.output}")
    else:
        print(legend(shades))
    return 0


def _load(source: str) -> DomainDataset:
    from findtta.data.open import load

    return load(source)


def _written(stream: Stream) -> str:
    settings = ",".join(f"{name}={value}" for name, value in stream.settings.items())
    return f"{stream.scenario}:{settings}" if settings else stream.scenario
