import functools
import itertools
import json
import re
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findtta.bench.comparison import compare
from findtta.bench.naming import AXES, named_runs
from findtta.bench.result import FLAT_COLUMNS, VALUES, Result, flat
from findtta.data.dataset import MAIN_CORRUPTIONS
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError
from findtta.intervals import Scores, interval
from made_results import made, unplanned


def words(result):
    (run,) = named_runs([result])
    return run.words


def titles(table):
    return [column.title for column in table.columns]


def one(results, *arguments, **options):
    (table,) = compare(results, *arguments, **options)
    return table


def column(table, title):
    """The cells of a column by the first entry of their row."""
    index = titles(table).index(title)
    return {row.titles[0]: row.cells[index] for row in table.rows}


def test_cells_are_means_over_seeds_with_intervals_clustered_by_image():
    accuracies = [50.0, 53.75, 58.75]
    table = one([made(accuracy=accuracy, seed=seed) for seed, accuracy in enumerate(accuracies)])
    cell = table.rows[0].cells[0]
    assert cell.values == dict(enumerate(accuracies))
    assert cell.mean == pytest.approx(sum(accuracies) / 3)
    assert cell.std == pytest.approx(statistics.stdev(accuracies))
    # The same forty images in all seeds, so forty clusters.
    expected = interval(cell.scores.values())
    assert cell.margin == expected.margin > interval([Scores(np.arange(240), joined(cell))]).margin
    assert f"54.17 ± {expected.margin:.2f}" in str(table)
    assert "mean over seeds 0-2 ± half of the 95% interval (clustered by image)" in table.title


def joined(cell):
    return np.concatenate([scores.values for scores in cell.scores.values()])


def test_values_that_are_not_known_by_sample_have_a_deviation_over_seeds():
    table = one([made(accuracy=50.0 + seed, seed=seed) for seed in range(2)], value="nll")
    assert table.rows[0].cells[0].margin is None
    assert "mean ± standard deviation over seeds 0, 1" in table.title
    assert "1.9800 ± 0.0283" in str(table)
    alone = one([made(seed=4)], value="nll")
    assert "±" not in str(alone)
    assert "seed 4" in alone.title


def test_differences_are_paired_by_sample():
    results = [made(method, accuracy) for method, accuracy in (("source", 40.0), ("tbn", 42.5), ("find", 60.0))]
    table = one(results)
    differences = column(table.differences, "crossmix")
    assert set(differences) == {"tbn", "find"}
    # Two of eighty samples differ, in two images of forty.
    by_hand = 2 / 80 * 100
    assert differences["tbn"].mean == pytest.approx(by_hand)
    assert differences["tbn"].signed_text(1) in str(table)
    assert differences["find"].margin < table.rows[0].cells[0].margin, "pairing must make it more certain"
    against = one(results, against="find").differences
    assert column(against, "crossmix")["source"].mean == pytest.approx(-20.0)
    assert "points above find" in against.title
    assert one([made("tbn"), made("find")]).differences is None
    assert one(results, value="nll").differences is None
    assert one(results, "batch-size", "method").differences is None


def test_differences_of_runs_with_other_seeds_are_not_shown():
    table = one([made("source", seed=0), made("find", seed=0), made("find", seed=1)])
    assert table.differences is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"against": "nothing"}, "against must be one of"),
        ({"against": "find", "value": "nll"}, "against is for accuracies"),
        ({"against": "find", "rows": "batch-size"}, "against is for accuracies"),
    ],
)
def test_against_must_be_a_method_of_the_runs(options, words):
    with pytest.raises(FindTTAError, match=words):
        compare([made()], **options)


def test_methods_and_streams_come_in_the_order_of_the_registries():
    methods, streams = ["find", "zzz-unknown", "source", "tbn"], ["wild", "static", "crossmix"]
    table = one([made(method, stream=stream) for method, stream in itertools.product(methods, streams)])
    assert [row.titles[0] for row in table.rows] == ["source", "tbn", "find", "zzz-unknown"]
    assert tuple(titles(table)) == ("static", "crossmix", "wild")


def test_rows_say_options_that_are_not_the_defaults():
    results = [
        made("find"),
        made("find", options={"alpha": 0.9}),
        made("find", options={"alpha": 0.8}),  # the default, said aloud: the same run
        made("mine", options={"b": [1, 2], "a": "x"}),
    ]
    assert [row.titles[0] for row in one(results).rows] == ["find", "find (alpha=0.9)", "mine (a=x, b=[1, 2])"]


def test_the_seed_of_a_method_is_no_option_of_its_own_unless_it_was_asked_for():
    results = [made("deyo", seed=seed) for seed in range(3)]
    assert [row.titles[0] for row in one(results).rows] == ["deyo"]
    results += [made("deyo", seed=seed, options={"seed": 7}) for seed in range(3)]
    assert [row.titles[0] for row in one(results).rows] == ["deyo", "deyo (seed=7)"]


def test_results_that_were_not_stored_yet_are_the_same_as_stored_ones():
    result = made("note", options={"skip_layers": (), "k": 4.0})
    stored = Result.from_json(result.to_json())
    assert words(result) == words(stored)
    assert words(result)["method"] == "note"


def test_columns_say_settings_that_are_not_the_defaults():
    usual = {"delta": 0.1, "variant": "text"}
    table = one([made(stream="wild", stream_settings={**usual, "delta": delta}) for delta in (0.1, 0.01)])
    assert tuple(titles(table)) == ("wild", "wild:delta=0.01")


DIFFERENT = {
    "model": ("net", "other"),
    "weights": ("a" * 16, "b" * 16),
    "data": ("shapes-c (generated)", "cifar10-c"),
    "domains": (("fog@5", "snow@5"), ("fog@3", "snow@3")),
    "images": (80, 160),
    "batch_size": (64, 16),
    "reset": ("never", "domain"),
    "device": ("cpu", "cuda"),
}


@pytest.mark.parametrize("setting", DIFFERENT)
def test_runs_that_differ_in_a_setting_never_share_a_table(setting):
    first, second = DIFFERENT[setting]
    results = [made(method, **{setting: value}) for method in ("source", "find") for value in (first, second)]
    tables = compare(results)
    assert len(tables) == 2
    assert [len(table.rows) for table in tables] == [2, 2]
    field = setting.replace("_", " ")
    said = [table.shared[field] for table in tables]
    assert said[0] != said[1]
    for table in tables:
        assert f"{field} {table.shared[field]}" in table.title


@pytest.mark.parametrize("setting", DIFFERENT)
def test_mixed_tables_say_in_every_row_what_differs(setting):
    first, second = DIFFERENT[setting]
    results = [
        made(method, accuracy, **{setting: value})
        for method, accuracy, value in [("source", 10, first), ("find", 20, first), ("find", 5, second)]
    ]
    table = one(results, mix=True)
    field = setting.replace("_", " ")
    assert field in table.row_titles
    assert field not in table.shared
    assert len(table.rows) == 3
    assert len({row.titles for row in table.rows}) == 3
    best = [row.titles for row in table.rows if row.cells[0].best]
    assert len(best) == 1  # 20 is better than 10; the 5 of another setting has no rival
    assert best[0][0] == "find"
    assert "within its setting" in str(table)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["source", "tbn", "find"]),
            st.sampled_from(["static", "crossmix"]),
            st.integers(0, 2),
            st.sampled_from(DIFFERENT["weights"]),
            st.sampled_from(DIFFERENT["images"]),
            st.sampled_from(DIFFERENT["domains"]),
            st.sampled_from(DIFFERENT["batch_size"]),
            st.sampled_from(DIFFERENT["reset"]),
            st.sampled_from(["done", "failed"]),
        ),
        unique=True,
        max_size=12,
    ),
    st.permutations(list(AXES)),
    st.booleans(),
)
def test_every_run_stands_in_exactly_one_cell_that_says_all_about_it(drawn, axes, mix):
    rows, columns = next(
        (row, column) for row, column in itertools.combinations(axes, 2) if not set(AXES[row]) & set(AXES[column])
    )
    results = [
        made(
            method,
            float(number),
            stream=stream,
            seed=seed,
            weights=weights,
            images=images,
            domains=domains,
            batch_size=batch_size,
            reset=reset,
            status=status,
        )
        for number, (method, stream, seed, weights, images, domains, batch_size, reset, status) in enumerate(drawn)
    ]
    # A run that was done and failed counts once, as done.
    failed_only = {result.digest for result in results} - {r.digest for r in results if r.status == "done"}
    found, failures = {}, 0
    for table in compare(results, rows, columns, mix=mix):
        assert len({row.titles for row in table.rows}) == len(table.rows)
        assert len(set(titles(table))) == len(table.columns)
        for row in table.rows:
            for title, cell in zip(titles(table), row.cells, strict=True):
                failures += len(cell.failed) if cell else 0
                for seed, value in (cell.values if cell else {}).items():
                    assert seed in table.seeds
                    said = {**table.shared, **dict(zip(table.row_titles[1:], row.titles[1:], strict=True))}
                    found[value] = (said, row.titles[0], title)
    assert failures == len(failed_only)
    assert set(found) == {result.accuracy for result in results if result.status == "done"}
    for result in results:
        if result.status != "done":
            continue
        said, row, title = found[result.accuracy]
        own = words(result)
        assert row.startswith(own[rows.replace("-", " ")])
        assert title.startswith(own[columns.replace("-", " ")])
        for field, text in own.items():
            assert said.get(field, text) == text
            if field not in (*AXES[rows], *AXES[columns]):
                assert field in said or not text


def test_missing_seeds_are_said_and_do_not_compete():
    results = [made("source", 40.0, seed=seed) for seed in range(3)]
    results += [made("tbn", 30.0, seed=seed) for seed in range(3)]
    results += [made("find", 90.0, seed=seed) for seed in (0, 2)]
    table = one(results)
    cells = column(table, "crossmix")
    assert cells["source"].best
    assert not cells["find"].best
    assert re.search(r"90\.00 ± [\d.]+ +\(2 of 3 seeds\)", str(table))
    assert re.search(r"40\.00 ± [\d.]+\*", str(table))


def test_rows_with_the_same_number_of_other_seeds_are_both_incomplete():
    table = one([made("source", seed=0), made("source", seed=1), made("find", seed=1), made("find", seed=2)])
    assert str(table).count("(2 of 3 seeds)") == 2
    assert not any(cell.best for row in table.rows for cell in row.cells)


def test_failed_runs_are_missing_seeds():
    results = [made("source", seed=0), made("source", seed=1, status="failed"), made("tbn", status="failed")]
    table = one([*results, unplanned()])
    cells = column(table, "crossmix")
    assert cells["source"].failed == (1,)
    assert re.search(r"50\.00 ± [\d.]+ \(1 of 2 seeds\)", str(table))
    assert re.search(r"tbn +failed", str(table))
    assert cells["tbn"].mean is None
    assert re.search(r"find .* - *$", str(one([made("source"), made("find", stream="static")])), re.MULTILINE)


@pytest.mark.parametrize("value", VALUES)
def test_the_best_is_ahead_of_all_others_by_more_than_chance(value):
    results = [made("source", 20.0), made("tbn", 50.0), made("find", 90.0), made("find", 20.0, stream="static")]
    best = {name for name, cell in column(one(results, value=value), "crossmix").items() if cell.best}
    # Only what is right or wrong is known by sample, so only there an interval can tell.
    assert best == ({"find"} if value in ("accuracy", "error") else set())
    # One sample of eighty more is no evidence.
    close = one([made("source", 20.0), made("tbn", 88.75), made("find", 90.0)], value=value)
    assert not any(cell.best for row in close.rows for cell in row.cells)


def test_nothing_is_best_where_there_is_no_other():
    for results in ([made("find")], [made("find", 50.0), made("tbn", 50.0)]):
        table = one(results)
        assert not any(cell.best for row in table.rows for cell in row.cells)
        assert "better than every other" not in str(table)


def test_with_methods_as_columns_the_best_is_sought_in_rows():
    results = [made("source", 10), made("find", 60), made("source", 90, stream="static")]
    table = one(results, "stream", "method")
    assert tuple(titles(table)) == ("source", "find")
    assert [[cell and cell.best for cell in row.cells] for row in table.rows] == [[False, None], [False, True]]
    assert "better than every other method of its row" in str(table)


def test_any_setting_can_be_a_column():
    results = [made(accuracy=number, batch_size=size) for number, size in ((10, 256), (20, 16), (30, 64))]
    table = one(results, columns="batch-size")
    assert tuple(titles(table)) == ("16", "64", "256")
    assert "batch size" not in table.shared
    assert table.shared["stream"] == "crossmix"


def test_titles_that_would_be_alike_say_what_differs():
    table = one([made(weights=weights) for weights in ("a" * 16, "b" * 16)], columns="model")
    assert tuple(titles(table)) == ("net, weights aaaaaaaa", "net, weights bbbbbbbb")
    severities = [tuple(f"{kind}@{level}" for kind in MAIN_CORRUPTIONS) for level in (3, 5)]
    table = one([made(domains=domains) for domains in severities], columns="domains")
    assert tuple(titles(table)) == ("the 15 corruptions at severity 3", "the 15 corruptions at severity 5")


@pytest.mark.parametrize(
    ("domains", "text"),
    [
        (("fog@5", "snow@5"), "fog, snow at severity 5"),
        (("fog@1", "fog@2", "fog@3"), "fog at severities 1-3"),
        (("fog@1", "fog@3"), "fog at severities 1, 3"),
        (("clean", "fog@5"), "clean and fog at severity 5"),
        (("fog@5", "snow@3"), "fog at severity 5 and snow at severity 3"),
        (("sketch", "photo"), "sketch, photo"),
    ],
)
def test_domains_in_words(domains, text):
    assert words(made(domains=domains))["domains"] == text


def test_streams_of_one_name_that_differ_in_samples_are_columns_of_their_own():
    old = made("source", 10, version="0.1.0", stream_version="old")
    new = made("find", 20, version="0.2.0", stream_version="new")
    table = one([old, new])
    assert tuple(titles(table)) == ("crossmix, findtta 0.1.0", "crossmix, findtta 0.2.0")
    assert column(table, "crossmix, findtta 0.1.0")["find"] is None
    same_release = [made("source", 10, stream_version="a"), made("find", 20, stream_version="b")]
    assert len(one(same_release).columns) == 2
    assert all(title.startswith("crossmix, digest ") for title in titles(one(same_release)))
    assert len(compare([old, new], columns="batch-size")) == 2


def test_the_same_run_with_other_versions_counts_once_and_the_newest_is_taken():
    results = [made(accuracy=30, version="0.2.0", started=2e9), made(accuracy=10, version="0.1.0", started=1e9)]
    results += [made(status="failed", version="0.3.0", started=3e9), made("tbn", version="0.1.0")]
    table = one(results)
    assert column(table, "crossmix")["find"].values == {0: 30}
    assert "2 older or failed repetitions" in str(table)
    assert "Runs were made with findtta 0.1.0 and 0.2.0." in str(table)


def test_tables_say_what_their_streams_are_like():
    table = str(one([made(), made(seed=1), made(stream="lifelong", samples=800)]))
    each_batch = "2.0 domains and 10.0 classes per"
    assert f"crossmix: 80 samples of 40 images in 2 batches of 64, {each_batch} batch." in table
    assert f"lifelong: 800 samples of 400 images in 2 batches of 64, {each_batch}" in table


def test_runs_by_different_code_are_told():
    old = made("find")
    old.config["code"]["data"] = "d" * 12
    assert "by different code of the data: run the older ones again" in str(one([old, made("tbn")]))
    assert "different code" not in str(one([made("find"), made("tbn")]))


def test_speed_says_where_it_was_measured():
    assert "Measured on Linux x86_64, cpu, 1 thread, each run at another time" in str(
        one([made()], value="latency")
    )
    assert "Measured" not in str(one([made()]))


def test_a_table_as_plain_values():
    numbers = (("source", 10, 0), ("source", 10, 1), ("find", 20, 0), ("find", 30, 1))
    table = one([made(method, accuracy, seed=seed) for method, accuracy, seed in numbers])
    values = json.loads(json.dumps(table.to_dict()))
    assert [column["title"] for column in values["columns"]] == ["crossmix"]
    assert values["seeds"] == [0, 1]
    assert values["shared"]["images"] == "80"
    assert values["rows"][1]["titles"] == ["find"]
    (cell,) = values["rows"][1]["cells"]
    assert cell["mean"] == 25
    assert cell["values"] == {"0": 20, "1": 30}
    assert cell["best"]


def test_nothing_gives_no_table():
    assert compare([]) == []
    assert compare([unplanned()]) == []


@pytest.mark.parametrize("argument", ["rows", "columns", "value"])
def test_unknown_names_are_refused(argument):
    with pytest.raises(UnknownNameError, match=f"{argument} must be one of .*'metod'"):
        compare([made()], **{argument: "metod"})


@pytest.mark.parametrize(("rows", "columns"), [("method", "method"), ("data", "images")])
def test_rows_and_columns_must_differ(rows, columns):
    with pytest.raises(OptionError, match="must differ"):
        compare([made()], rows, columns)


@pytest.mark.parametrize(
    "path", ["config.reset", "config.stream", "config.data.images", "metrics.nll", "cost.latency_ms.p50"]
)
def test_results_that_lack_something_are_refused_by_its_name(path):
    document = json.loads(made().to_json())
    *parts, name = path.split(".")
    functools.reduce(dict.__getitem__, parts, document).pop(name)
    with pytest.raises(InputError, match=f"{path} is missing"):
        Result.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("config.model", "net", "config.model must be a table of names with values, got 'net'"),
        ("config.data.domains", "fog", "config.data.domains must be a list, got 'fog'"),
        ("config.data.domains", ["fog", 3], "config.data.domains.1 must be a text, got 3"),
        ("config.seed", True, "config.seed must be a whole number, got True"),
        ("config.data.images", 1.5, "config.data.images must be a whole number"),
        ("metrics.accuracy", "high", "metrics.accuracy must be a number, got 'high'"),
        ("metrics.accuracy", None, "metrics.accuracy is missing"),
        ("per_domain", {"fog@5": {"samples": 3}}, "per_domain.fog@5.accuracy is missing"),
        ("per_class", {"disc": 3}, "per_class.disc must be a table"),
        ("per_round", [50.0, "x"], "per_round.1 must be a number"),
        ("running.batch", {"0": 1}, "running.batch must be a list"),
        ("layers", [{"name": "bn1", "kind": "BatchNorm2d"}], "layers.0.channels is missing"),
        ("environment.started", "today", "environment.started must be a number"),
        ("spec.seed", "0", "spec.seed must be a whole number, got '0'"),
        ("collapse", {"batch": 3}, "collapse.reason is missing"),
    ],
    ids=str,
)
def test_results_with_a_value_of_another_type_are_refused_by_its_name(path, value, message):
    document = json.loads(made().to_json())
    *parts, name = path.split(".")
    functools.reduce(dict.__getitem__, parts, document)[name] = value
    with pytest.raises(InputError, match=re.escape(message)):
        Result.from_json(json.dumps(document))


def test_flat_rows_have_every_column_and_its_type():
    rows = [flat(result) for result in (made(accuracy=12.5, seed=3), made(status="failed"), unplanned())]
    assert all(list(row) == list(FLAT_COLUMNS) for row in rows)
    for row in rows:
        for name, kind in FLAT_COLUMNS.items():
            assert row[name] is None or type(row[name]) is kind, name
    done, failed, early = rows
    may_lack = ("failure", "collapse", "compile")
    assert None not in {value for name, value in done.items() if not name.startswith(may_lack)}
    assert (done["accuracy"], done["error"], done["seed"]) == (12.5, 87.5, 3)
    assert json.loads(done["options"]) == {"alpha": 0.8}
    assert json.loads(done["domains"]) == ["fog@5", "snow@5"]
    assert done["started"] == "2023-11-14T22:13:20+00:00"
    assert (done["latency_p50_ms"], done["peak_memory_mb"], done["forward_passes"]) == (5.0, 310.0, 1)
    assert failed["accuracy"] is None
    assert failed["failure_message"] == "two\nlines"
    assert failed["stream"] == "crossmix"
    assert (early["method"], early["data"], early["failure_type"]) == ("find", "nowhere", "OptionError")
