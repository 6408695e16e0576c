"""List the methods, or show one with its options and citation."""

import argparse

from findtta.registry import describe, load_method, methods


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta methods``."""
    parser.add_argument("name", nargs="?", help="show this method only, with its options")


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue or one method."""
    print(describe(load_method(arguments.name)) if arguments.name else methods())
    return 0
