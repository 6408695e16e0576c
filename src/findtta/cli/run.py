"""Run one method on one stream, and keep what it gave."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from findtta.bench.plan import Plan, Planner
from findtta.bench.result import Result
from findtta.bench.run import run as run_plan
from findtta.bench.schedule import look_up
from findtta.bench.spec import RunSpec
from findtta.bench.store import Store
from findtta.errors import InputError, OptionError
from findtta.options import parse_assignments, parse_value, split_list
from findtta.tables import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta run``."""
    parser.add_argument("--method", default="find", metavar="NAME", help="see 'findtta methods' (default: find)")
    parser.add_argument("--model", metavar="NAME", help=f"{MODELS} (default: shapes-resnet26)")
    parser.add_argument("--data", metavar="NAME|PATH", help="the dataset (default: shapes, drawn on the spot)")
    parser.add_argument(
        "--stream", metavar="NAME[:SETTING=VALUE,...]", help="such as wild:delta=0.01 (default: crossmix)"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples per batch (default: 64)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the stream and of the method (default: 0)")
    add_settings(parser)
    parser.add_argument("--check", action="store_true", help="first check the model's accuracy on clean images")
    parser.add_argument("--again", action="store_true", help="run even if the result is there already")
    parser.add_argument("--no-store", action="store_true", help="keep no result, and look for none")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Run, and print what came of it."""
    spec = RunSpec.from_dict(settings_of(arguments, ("method", "model", "data", "stream", "batch_size", "seed")))
    set_threads(arguments.threads)
    plan = Planner().plan(spec)
    store = None if arguments.no_store else Store(arguments.runs)
    if arguments.check:
        _check_clean_accuracy(plan, quiet=arguments.json)
    if store:
        store.require_writable()
    result = look_up(store, plan.digest) if store and not arguments.again else None
    if result is not None and result.status == "done":
        _tell("this run is stored already (--again runs it again)", arguments.json)
    else:
        result = _run_with_bar(plan, quiet=arguments.json)
        if store:
            store.put(result)
    if arguments.json:
        print(result.to_json())
    else:
        print(describe(result))
        if store:
            print(f"\nresult in {store.folder / f'{result.digest}.json'}")
    return 0


MODELS = "a shipped model, an architecture with --weights, timm:NAME, module:CALLABLE or file.py:CALLABLE"


def add_settings(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare the arguments that 'findtta run' and 'findtta bench' have in common."""
    parser.add_argument("--weights", metavar="FILE", help="weights of an architecture")
    parser.add_argument("--normalization", metavar="NAME", help="of the input, if the weights have no card")
    parser.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help="an option of the method; may be repeated"
    )
    parser.add_argument(
        "--data-option", action="append", metavar="NAME=VALUE", help="an option of the dataset, such as count=2000"
    )
    parser.add_argument("--domains", metavar="NAME,...", help="such as fog,snow@3 (default: the scenario's)")
    parser.add_argument("--severity", metavar="N,...", help="of domains that do not say theirs (default: 5)")
    parser.add_argument("--images", type=int, metavar="N", help="at most so many images per domain")
    parser.add_argument(
        "--reset",
        choices=("never", "domain"),
        help="'domain': forget everything when the domain of whole batches changes (default: never)",
    )
    parser.add_argument("--device", help="where the model runs (default: cpu)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of a run (default: all there are)")
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="folder of the results (default: $FINDTTA_RUNS, or findtta-runs here)",
    )


def settings_of(arguments: argparse.Namespace, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the settings of a run that were given on the command line.

    Args:
        arguments: The command line.
        more: Settings with an argument of the same name, besides those that ``add_settings`` declares.

    Returns:
        The settings, without those that were not given.
    """
    plain = (*more, "weights", "normalization", "images", "reset", "device")
    settings = {name: getattr(arguments, name) for name in plain if getattr(arguments, name) is not None}
    if arguments.option:
        settings["options"] = parse_assignments("--option", arguments.option)
    if arguments.data_option:
        settings["data_options"] = parse_assignments("--data-option", arguments.data_option)
    if arguments.domains is not None:
        settings["domains"] = split_list(arguments.domains)
    if arguments.severity is not None:
        settings["severity"] = [parse_value(level) for level in split_list(arguments.severity)]
    return settings


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads, if a number was given."""
    if threads is None:
        return
    if threads < 1:
        raise OptionError(f"--threads must be at least 1, got {threads}.")
    torch.set_num_threads(threads)


def describe(result: Result) -> str:
    """Return what a run gave, for people to read."""
    if result.status == "failed":
        error = result.error or {}
        return f"failed: {error.get('type')}: {error.get('message')}"
    parts = [_headline(result), render(("measure", "value"), _measures(result))]
    # In the order of the stream, which the file of a result does not keep.
    seen = [(name, result.per_domain.get(name)) for name in result.config["data"]["domains"]]
    domains = [(name, int(row["samples"]), f"{row['accuracy']:.2f}") for name, row in seen if row]
    parts.append(render(("domain", "images", "accuracy %"), domains))
    return "\n\n".join(parts)


def _headline(result: Result) -> str:
    config, options = result.config, result.spec["options"]
    chosen = f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""
    stream = config["stream"]
    return (
        f"{config['method']}{chosen}: {config['model']['name']} on {config['data']['name']}, "
        f"{result.spec['stream']}, {stream['batches']} batches of {stream['batch_size']}, seed {config['seed']}"
    )


def _measures(result: Result) -> list[tuple[str, str]]:
    metrics, cost = result.metrics, result.cost
    measures = [
        ("accuracy", f"{metrics['accuracy']:.2f} %"),
        ("error", f"{metrics['error']:.2f} %"),
        ("negative log-likelihood", f"{metrics['nll']:.4f}"),
        ("Brier score", f"{metrics['brier']:.4f}"),
        ("calibration error", f"{metrics['ece']:.2f} %"),
    ]
    if len(result.per_round) > 1:
        measures.append(("accuracy by round", ", ".join(f"{value:.2f}" for value in result.per_round)))
    ranked = sorted(result.per_class.items(), key=lambda item: (item[1]["accuracy"], item[0]))
    if ranked:
        for name, (label, row) in (("worst class", ranked[0]), ("best class", ranked[-1])):
            measures.append((name, f"{label}, {row['accuracy']:.2f} %"))
    measures.append(("groups per layer", _groups(result)))
    latency = cost["latency_ms"]
    measures.append(("latency of a batch", f"{latency['p50']:.1f} ms (95 %: {latency['p95']:.1f} ms)"))
    measures.append(("peak memory", f"{cost['peak_memory_mb']:.0f} MB"))
    if metrics["not_finite"]:
        measures.append(("predictions with NaN", f"{metrics['not_finite']}"))
    collapse: Mapping[str, Any] | None = result.collapse
    measures.append(("collapse", f"since batch {collapse['batch']}: {collapse['reason']}" if collapse else "none"))
    return measures


def _groups(result: Result) -> str:
    means = [layer["groups_mean"] for layer in result.layers if layer["groups_mean"] is not None]
    if not means:
        return "the method makes none"
    return f"{sum(means) / len(means):.1f} ({min(means):.1f} to {max(means):.1f} over {len(means)} layers)"


def _run_with_bar(plan: Plan, *, quiet: bool) -> Result:
    hidden = quiet or not sys.stderr.isatty()
    with tqdm(total=len(plan.stream), unit="batch", disable=hidden, leave=False) as bar:

        def show(done: int, accuracy: float) -> None:
            bar.set_postfix_str(f"{accuracy:.2f} % right", refresh=False)
            bar.update(done - bar.n)

        return run_plan(plan, None if hidden else show)


def _check_clean_accuracy(plan: Plan, *, quiet: bool) -> None:
    from findtta.data.open import load
    from findtta.models import check_clean_accuracy

    outcome = check_clean_accuracy(plan.model, load(plan.spec.data, **plan.spec.data_options))
    if not outcome.passed:
        raise InputError(f"--check: {outcome}")
    _tell(str(outcome), quiet)


def _tell(message: str, quiet: bool) -> None:
    if not quiet:
        print(message, file=sys.stderr)
