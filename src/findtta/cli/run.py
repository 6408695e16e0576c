"""``findtta run``: evaluate one method on one stream, and store the result."""

import argparse
import functools

from findtta._progress import progress_bar
from findtta.bench.execute import schedule
from findtta.bench.executors import Execution, Serial, Task
from findtta.bench.plan import ALL, Plan, Planner, RunSpec
from findtta.bench.store import Store
from findtta.cli.flags import add_config, add_flags, given
from findtta.cli.output import tell
from findtta.cli.results import describe
from findtta.cli.stored import add_runs
from findtta.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta run``."""
    add_config(parser)
    add_flags(parser, RunSpec)
    add_flags(parser, Execution, only=("threads",))
    add_runs(parser)
    parser.add_argument("--check", action="store_true", help="first check the model's accuracy on clean images")
    parser.add_argument("--again", action="store_true", help="run even if the result is stored already")
    parser.add_argument(
        "--no-store", action="store_true", help="neither store the result nor look for a stored one"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and print the result."""
    quiet = arguments.json
    spec, planner = RunSpec(**given(arguments, RunSpec)), Planner(functools.partial(tell, quiet=quiet))
    execution = Execution(**given(arguments, Execution, only=("threads",)))
    execution.check_device(spec.device)
    plan = planner.plan(spec)
    if len(plan.dataset) < plan.available:
        used = f"{len(plan.dataset):,} of {plan.available:,} images, {spec.images:,} per domain, drawn by the seed"
        tell(f"{used} (--images N for another number, --images {ALL} for all)", quiet=quiet)
    if arguments.check:
        _check_clean_accuracy(plan, quiet=quiet)
    store = None if arguments.no_store else Store(arguments.runs)
    if store:
        store.require_writable()
    planned = schedule([spec], store, planner, again=arguments.again, retry_failed=True)
    if not planned.todo:
        tell("this run is stored already (--again runs it again)", quiet=quiet)
    with progress_bar(len(plan.stream), "batch", quiet=quiet) as bar:

        def watch(task: Task, done: float, accuracy: float) -> None:
            bar.set_postfix_str(f"accuracy {accuracy:.2f} %", refresh=False)
            bar.update(round(done * len(plan.stream)) - bar.n)

        for _ in planned.run(Serial(planner, execution.threads, raise_errors=True), watch):
            pass
    ((_, result),) = planned.pairs()
    if quiet:
        print(result.to_json())
    else:
        print(describe(result))
        if store:
            print(f"\nresult in {store.path(result.digest)}")
    return 0


def _check_clean_accuracy(plan: Plan, *, quiet: bool) -> None:
    from findtta.data.dataset import match_classes
    from findtta.data.open import load
    from findtta.models import check_clean_accuracy

    options, card = plan.spec.data_options, plan.model.card
    data = load(plan.spec.data, preprocessing=plan.dataset.preprocessing, **options)
    data, _ = match_classes(data, card.classes, card.num_classes, given="classes" in options)
    outcome = check_clean_accuracy(plan.model, data)
    if not outcome.passed:
        raise InputError(f"--check: {outcome}")
    tell(str(outcome), quiet=quiet)
