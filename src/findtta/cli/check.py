"""``findtta check``: whether a method, stream, corruption, partitioner or dataset keeps what it declares."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta check``."""
    parser.add_argument("name", metavar="NAME[:OPTION=VALUE,...]", help="a name, or file.py:NAME")
    parser.add_argument(
        "--kind", help="method, stream, corruption, partitioner or dataset, if the name is not clear"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the outcome of every check; the exit code is 1 if one failed."""
    from findtta.cli.output import print_text
    from findtta.conformance import check
    from findtta.tables import render

    outcomes = check(arguments.name, arguments.kind)
    print_text(render(("check", "outcome", "why"), [(each.check, each.status, each.why) for each in outcomes]))
    return 1 if any(each.status == "failed" for each in outcomes) else 0
