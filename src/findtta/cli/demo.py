"""Show what adaptation does: train a small network, drift its inputs, compare the methods."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta demo``."""


def run(arguments: argparse.Namespace) -> int:
    """Run the demo."""
    return 0
