"""Show what adaptation does: train a small network, drift its inputs, compare the methods."""

from __future__ import annotations

import argparse

from findtta import demo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta demo``."""
    parser.add_argument("--seed", type=int, default=0, help="seed of everything that is random")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print what it shows."""
    print("Training a small network on drawn shapes (about half a minute) ...", flush=True)
    print()
    print(demo.run(seed=arguments.seed))
    print()
    print(
        "'mixed batches' has eight kinds of drift side by side in every batch. Statistics of the whole batch\n"
        "(tbn) fit none of them; FIND splits each batch into groups of like features and normalises each."
    )
    return 0
