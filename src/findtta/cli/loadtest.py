"""Put a prediction server under load, and check every answer."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from findtta.errors import OptionError

_RATE = 50.0
#: The variable that the server takes its key from, too.
_KEY_VARIABLE = "FINDTTA_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta loadtest``."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="of the server (default: http://127.0.0.1:8000)"
    )
    parser.add_argument("--api-key", metavar="KEY", help=f"if the server asks for one (default: ${_KEY_VARIABLE})")
    load = parser.add_argument_group("load")
    load.add_argument("--requests", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    speed = load.add_mutually_exclusive_group()
    speed.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help=f"requests per second that arrive, whether answers come or not (default: {_RATE:g})",
    )
    speed.add_argument(
        "--saturate", action="store_true", help="send as fast as answers come, to find the most per second"
    )
    load.add_argument(
        "--concurrency", type=int, default=64, metavar="C", help="most connections at once (default: 64)"
    )
    load.add_argument("--retries", type=int, default=2, metavar="N", help="tries after the first (default: 2)")
    load.add_argument("--timeout", type=float, default=90, metavar="S", help="seconds per try (default: 90)")
    load.add_argument("--limit", type=float, metavar="S", help="seconds for everything (default: from the others)")
    what = parser.add_argument_group("what is sent")
    what.add_argument(
        "--images",
        default="shapes",
        metavar="FOLDER|shapes",
        help="good images (default: shapes, drawn on the spot)",
    )
    what.add_argument("--per-request", type=int, default=1, metavar="N", help="images per request (default: 1)")
    what.add_argument(
        "--bad", type=float, default=0.0, metavar="FRACTION", help="share of poisoned inputs (default: 0)"
    )
    what.add_argument(
        "--oversize-mb",
        type=float,
        default=40,
        metavar="MB",
        help="the poisoned input that is too large (default: 40)",
    )
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of times, images and mixture (default: 0)")
    server = parser.add_argument_group("the server on this machine")
    server.add_argument("--pid", type=int, help="watch the memory of this process and its descendants")
    server.add_argument("--kill-every", type=float, metavar="S", help="kill a Ray Serve replica every S seconds")
    server.add_argument("--kills", type=int, default=100, metavar="N", help="at most so many (default: 100)")
    server.add_argument("--deployment", default="Model", metavar="NAME", help="whose replicas (default: Model)")
    server.add_argument("--app", default="findtta", metavar="NAME", help="of which app (default: findtta)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything to this file, too")


def run(arguments: argparse.Namespace) -> int:
    """Test, and print what was found; 0 only if nothing was lost, swapped, unexpected or left unsent."""
    from tqdm import tqdm

    from findtta import loadtest
    from findtta.loadtest.memory import Watch
    from findtta.loadtest.outcome import FAULTS, Tally

    if arguments.json and not arguments.json.resolve().parent.is_dir():
        raise OptionError(f"--json must be a file in a folder that exists, but {arguments.json.parent} does not.")
    options = loadtest.LoadOptions(
        url=arguments.url,
        requests=arguments.requests,
        rate=None if arguments.saturate else _RATE if arguments.rate is None else arguments.rate,
        concurrency=arguments.concurrency,
        bad=arguments.bad,
        seed=arguments.seed,
        images=arguments.images,
        per_request=arguments.per_request,
        retries=arguments.retries,
        timeout=arguments.timeout,
        limit=arguments.limit,
        oversize_mb=arguments.oversize_mb,
        api_key=arguments.api_key or os.environ.get(_KEY_VARIABLE),
    )
    killer = None
    if arguments.kill_every is not None:
        killer = loadtest.Killer(
            arguments.kill_every, arguments.kills, arguments.deployment, arguments.app, arguments.seed
        )
    watch = None
    if arguments.pid is not None:
        watch = Watch.tree(arguments.pid)
    elif killer:
        watch = Watch.replicas()
    with tqdm(total=options.requests, unit="request", leave=False, disable=not sys.stderr.isatty()) as bar:

        def show(tally: Tally) -> None:
            faults = sum(tally.fates[fate] for fate in FAULTS)
            bar.set_postfix(faults=faults, refused=tally.fates["refused"], refresh=False)
            bar.update()

        outcome = loadtest.run(options, watch=watch, killer=killer, progress=show)
    print(outcome.text())
    if arguments.json:
        outcome.write(arguments.json)
    return 0 if outcome.passed else 1
