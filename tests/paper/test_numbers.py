"""The paper's numbers: its averages recomputed, its claims checked, its source compared cell by cell."""

import doctest
import re
import statistics
from collections import Counter

import pytest

from findtta.errors import UnknownNameError
from findtta.paper import numbers
from findtta.paper.numbers import METHODS, PRINTED, SIDE_BY_SIDE
from findtta.registry import BUILT_IN

# Cells and averages are both rounded to 0.01, which can add up to so much; and a little for binary fractions.
ROUNDING = 0.01 + 1e-9

# Printed averages that do not follow from the printed cells: table, row, column, printed, recomputed.
ERRATA = [
    ("main-resnet50", "find", "average", 47.87, 47.99),
    ("main-resnet50", "find-star", "average", 48.50, 48.51),
    ("main-efficientvit", "eata", "shuffle/average", 48.83, 49.15),
    ("main-efficientvit", "eata", "average", 47.92, 48.03),
]

# What the text says and the tables do not.
REFUTED = [
    "gain-over-best",
    "shuffle-over-alpha-bn",
    "transformer-over-vida",
    "transformer-over-source",
    "threshold-accuracy",
    "smaller-than-rotta",
    "resnet26-over-vida",
    "static-over-best",
]

# Claims whose data are drawn in figures only.
FIGURES_ONLY = [
    "dynamic-drop",
    "fine-tuning-harm",
    "normalisation-gain",
    "fine-tuning-gain",
    "threshold-drop",
    "threshold-time-more",
]

METHODS_ACROSS = ("efficiency", "static")
METHODS_DOWN = tuple(name for name in PRINTED if name not in METHODS_ACROSS)


def averages():
    """Every printed average with the cells it should be the mean of."""
    for table in numbers.tables().values():
        for row in table.rows:
            for column in table.columns:
                if column.average_of:
                    yield (
                        table.id,
                        row.name,
                        column.name,
                        row.values[column.name],
                        [row.values[name] for name in column.average_of],
                    )


class TestAverages:
    def test_every_average_follows_from_its_cells_but_for_the_known_errata(self):
        wrong = [
            (table, row, column, printed, round(statistics.fmean(cells), 2))
            for table, row, column, printed, cells in averages()
            if abs(statistics.fmean(cells) - printed) > ROUNDING
        ]
        assert wrong == ERRATA

    def test_there_are_as_many_averages_as_the_paper_prints(self):
        per_table = Counter(table for table, *_ in averages())
        assert per_table == {
            "main-resnet50": 13 * 4, "main-efficientvit": 12 * 4, "ablation": 4, "domains": 12, "resnet26": 12,
            "wild-0.1": 12, "wild-0.01": 12, "wild-0.005": 12, "lifelong-2": 12, "lifelong-3": 12,
        }  # fmt: skip

    def test_the_data_files_say_which_averages_are_wrong(self):
        noted = [
            (table.id, *(erratum[name] for name in ("row", "column", "printed", "recomputed")))
            for table in numbers.tables().values()
            for erratum in table.errata
        ]
        assert noted == ERRATA

    @pytest.mark.parametrize("name", ["main-resnet50", "main-efficientvit"])
    def test_the_last_average_is_of_all_measured_columns(self, name):
        table = numbers.table(name)
        measured = [column.name for column in table.columns if not column.average_of]
        assert len(measured) == 9
        assert table.column("average").average_of == measured

    def test_the_wrong_shuffle_average_of_eata_explains_its_last_one(self):
        row = numbers.table("main-efficientvit").row("eata")
        mean = statistics.fmean(row.values[f"{stream}/average"] for stream in ("crossmix", "random", "shuffle"))
        assert round(mean, 2) == row.values["average"]


class TestClaims:
    @pytest.mark.parametrize("claim", numbers.claims().values(), ids=lambda claim: claim.id)
    def test_the_recomputed_number_is_the_noted_one(self, claim):
        noted = claim.recomputed
        assert (claim.id in FIGURES_ONLY) == (noted is None)
        found = claim.recompute()
        assert found == (None if noted is None else pytest.approx(noted, abs=0.005 + 1e-9))

    def test_the_claims_that_the_tables_refute(self):
        assert [claim.id for claim in numbers.claims().values() if claim.holds is False] == REFUTED

    def test_the_claims_that_the_tables_cannot_decide_are_read_off_figures(self):
        undecided = [claim for claim in numbers.claims().values() if claim.holds is None]
        assert [claim.id for claim in undecided] == FIGURES_ONLY
        assert all(claim.figure for claim in undecided)

    def test_figures_named_by_claims_exist(self):
        named = {claim.figure for claim in numbers.claims().values()} - {""}
        assert named <= set(numbers.figures())
        assert len(named) == 3

    def test_every_range_runs_upwards(self):
        assert all(claim.low <= claim.high for claim in numbers.claims().values())

    @pytest.mark.parametrize(
        ("table", "columns", "best", "worst"),
        [
            ("main-resnet50", ["crossmix/average"], "deyo", "rotta"),
            ("main-resnet50", ["random/average"], "alpha-bn", "rotta"),
            ("main-resnet50", ["shuffle/average"], "alpha-bn", "iabn"),
            ("main-efficientvit", ["crossmix/average"], "source", "note"),  # the text says ViDA is the worst
            ("domains", ["average"], "deyo", "rotta"),
            ("static", ["static/imagenet-c"], "deyo", "rotta"),
            ("wild", ["delta-0.1/average", "delta-0.01/average", "delta-0.005/average"], "alpha-bn", "deyo"),
        ],
    )
    def test_which_baselines_are_best_and_worst(self, table, columns, best, worst):
        means = {
            row.name: statistics.fmean(row.values[column] for column in columns)
            for row in numbers.table(table).rows
            if row.method not in ("find", "find-star")
        }
        assert (max(means, key=means.get), min(means, key=means.get)) == (best, worst)

    def test_ranks_in_the_efficiency_table(self):
        rows = numbers.table("efficiency").rows
        by_time, by_memory = ([row.values[name] for row in rows] for name in ("latency", "memory"))
        rank = {
            row.name: (
                1 + sum(other < row.values["latency"] for other in by_time),
                1 + sum(other < row.values["memory"] for other in by_memory),
            )
            for row in rows
        }
        assert rank["tbn"] == (1, 1)
        assert rank["find-star"] == (2, 2)
        assert rank["find"] == (5, 3)

    def test_deyo_falls_below_20_with_runs_of_classes(self):
        deyo = numbers.table("wild").row("deyo").values
        assert [deyo[f"delta-{delta}/cifar100-c"] for delta in (0.1, 0.01, 0.005)] == [18.27, 11.27, 10.17]

    def test_only_tent_sar_and_deyo_lose_much_in_the_third_round(self):
        def loss(row):
            datasets = ("cifar10-c", "cifar100-c")
            return max(row.values[f"round-2/{name}"] - row.values[f"round-3/{name}"] for name in datasets)

        rows = numbers.table("lifelong").rows
        assert {row.name for row in rows if loss(row) > 1.5} == {"tent", "sar", "deyo"}
        assert loss(numbers.table("lifelong").row("find")) == pytest.approx(0.05)


class TestAgreementBetweenTables:
    @pytest.mark.parametrize("method", ["source", "find", "find-star"])
    @pytest.mark.parametrize("column", ["cifar10-c", "cifar100-c", "imagenet-c", "average"])
    def test_the_ablation_repeats_the_main_table(self, method, column):
        expected = numbers.value("main-resnet50", method, f"crossmix/{column}")
        assert numbers.value("ablation", method, column) == expected

    def test_the_clustering_table_repeats_main_table_and_efficiency(self):
        row = numbers.table("clustering").row("find")
        assert row.values["accuracy"] == numbers.value("main-resnet50", "find", "crossmix/imagenet-c")
        assert row.values["latency"] == numbers.value("efficiency", "find", "latency")
        assert row.values["memory"] == numbers.value("efficiency", "find", "memory")

    def test_the_plain_model_hardly_depends_on_the_stream(self):
        plain = [
            row.values[column.name]
            for table in numbers.tables().values()
            if table.settings.get("domains") == 15 and table.settings["model"] == "ResNet-50"
            for row in table.rows
            if row.name == "source"
            for column in table.columns
            if column.settings.get("dataset") == "cifar10-c"
        ]
        assert len(plain) == 9
        assert max(plain) - min(plain) < 0.04


class TestReader:
    def test_a_cell_of_each_table(self):
        cells = {
            ("table1", "iabn", "crossmix/imagenet-c"): 9.73,
            ("table2", "alpha-bn", "random/cifar10-c"): 78.47,
            ("table3", "kmeans", "memory"): 15.91,
            ("table4", "vida", "latency"): 5.62,
            ("table5", "tfn", "average"): 25.11,
            ("table6", "eata", "cifar100-c/6-domains"): 35.52,
            ("table7", "vida", "cifar10-c"): 65.80,
            ("table8", "find-star", "static/imagenet-c"): 32.10,
            ("table9", "note", "delta-0.1/cifar10-c"): 67.50,
            ("table10", "deyo", "delta-0.01/average"): 30.81,
            ("table11", "tent", "delta-0.005/cifar100-c"): 25.97,
            ("table12", "rotta", "round-2/cifar100-c"): 23.58,
            ("table13", "find", "round-3/average"): 55.61,
        }
        assert {cell: numbers.value(*cell) for cell in cells} == cells

    def test_a_number_names_the_same_table_as_its_id(self):
        for number, name in enumerate(PRINTED, start=1):
            assert numbers.table(f"table{number}") is numbers.table(name)
            assert numbers.table(name).numbers == (number,)

    @pytest.mark.parametrize("name", SIDE_BY_SIDE)
    def test_tables_side_by_side_hold_all_cells_of_their_parts(self, name):
        whole = numbers.table(name)
        parts = [numbers.table(part) for part in SIDE_BY_SIDE[name]]
        assert whole.columns == tuple(column for part in parts for column in part.columns)
        for part in parts:
            assert [row.name for row in part.rows] == [row.name for row in whole.rows]
            for row in part.rows:
                assert row.values.items() <= whole.row(row.name).values.items()
            # One set of settings must do for the whole.
            assert part.settings == whole.settings
        assert whole.numbers == tuple(number for part in parts for number in part.numbers)

    def test_a_method_the_table_leaves_out_has_no_value(self):
        assert numbers.value("efficiency", "alpha-bn", "latency") is None
        assert numbers.table("static").absent == ("source", "note", "iabn")
        assert numbers.table("main-resnet50").absent == ()

    def test_settings_of_a_column_add_to_those_of_its_table(self):
        settings = numbers.table("wild").column("delta-0.01/cifar100-c").settings
        assert settings["scenario"] == "wild"
        assert settings["delta"] == 0.01
        assert settings["dataset"] == "cifar100-c"
        assert (settings["batch_size"], settings["severity"], settings["lr"]) == (64, 5, 1e-4)
        assert (settings["alpha"], settings["threshold"], settings["cold_start"]) == (0.8, 0.1, 10)

    def test_what_a_table_says_wins_over_what_holds_for_all(self):
        assert numbers.table("efficiency").settings["device"] == "V100"
        assert numbers.table("static").settings["device"] != "V100"

    def test_units(self):
        units = {id: [column.unit for column in numbers.table(id).columns] for id in ("clustering", "efficiency")}
        assert units == {"clustering": ["%", "s", "GB"], "efficiency": ["s", "GB"]}
        assert {column.unit for column in numbers.table("wild").columns} == {"%"}

    def test_spreads_belong_to_measured_columns(self):
        row = numbers.table("main-resnet50").row("find-star")
        assert row.spreads["shuffle/imagenet-c"] == 0.4
        assert "shuffle/average" not in row.spreads
        assert len(row.spreads) == 9
        assert not numbers.table("main-resnet50").row("tent").spreads

    def test_rows_that_are_variants_say_how_they_are_made(self):
        kmeans, tfn = numbers.table("clustering").row("kmeans"), numbers.table("ablation").row("tfn")
        assert (kmeans.method, dict(kmeans.options)) == ("find", {"partitioner": "kmeans"})
        assert (tfn.method, dict(tfn.options)) == ("find", {"alpha": 0.0})

    def test_all_methods_exist_here(self):
        assert set(METHODS) <= set(BUILT_IN)
        used = {row.method for table in numbers.tables().values() for row in table.rows}
        assert used == set(METHODS)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: numbers.table("tabel1"), "Did you mean 'table1'"),
            (lambda: numbers.value("main-resnet", "find", "average"), "Did you mean 'main-resnet50'"),
            (
                lambda: numbers.value("table1", "finds", "average"),
                "'main-resnet50'.*Did you mean 'find'",
            ),
            (lambda: numbers.value("table1", "find", "crosmix/average"), "Did you mean 'crossmix/average'"),
            (lambda: numbers.value("static", "source", "average"), "the column"),
        ],
    )
    def test_unknown_names_are_refused_with_a_suggestion(self, call, message):
        with pytest.raises(UnknownNameError, match=message):
            call()

    def test_the_examples_run(self):
        results = doctest.testmod(numbers)
        assert results.attempted > 0
        assert results.failed == 0


class TestFigures:
    def test_numbers_follow_the_order(self):
        assert [figure.number for figure in numbers.figures().values()] == list(range(1, 16))
        assert numbers.figures()["sensitivity"].number == 10
        assert len(numbers.figures()["sensitivity"].panels) == 5

    @pytest.mark.parametrize("figure", numbers.figures().values(), ids=lambda figure: figure.id)
    def test_measurements_have_axes_and_others_have_none(self, figure):
        assert figure.title
        assert figure.claim
        assert (figure.kind == "measurement") == bool(figure.panels)
        assert all(panel["x"] and panel["y"] for panel in figure.panels)


@pytest.fixture(scope="module")
def source(shared):
    """The paper's LaTeX source."""
    path = shared / "paper" / "find.tex"
    if not path.is_file():
        pytest.skip("the paper's source is not here")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bodies(source):
    """What stands below the heading of each of the paper's tables."""
    return dict(zip(PRINTED, re.findall(r"\\midrule(.*?)\\end\{tabular\}", source, re.DOTALL), strict=True))


def plain(text):
    """Return the text of a cell without LaTeX."""
    text = re.sub(r"\\rowcolor(\[HTML\])?\{[^}]*\}|~|\$\\bullet|\\(textbf|underline|scriptsize)|\\(?=%)", "", text)
    return re.sub(r"[${}]", "", text.replace(r"\alpha", "\N{GREEK SMALL LETTER ALPHA}")).strip()


def grid(latex):
    """Return the cells of LaTeX rows, without LaTeX."""
    rows = [[plain(cell) for cell in line.split("&")] for line in latex.split(r"\\")]
    return [row for row in rows if len(row) > 1]


def heading(source, body):
    """Return the cells of the heading that stands above the body of a table."""
    above = source[: source.index(body)].removesuffix(r"\midrule")
    last_row = above[above.rindex("Method") :]
    two_lines = r"\\tabincell\{c\}\{(\d+)\\\\(\w+)\}"
    return grid(re.sub(two_lines, r"\1 \2", last_row).replace(r"\tabincell{c}", ""))[0]


def as_printed(row):
    """Return the cells of a row in the paper's writing."""
    cells = [row.printed, row.venue] if row.venue else [row.printed]
    for column, number in row.values.items():
        spread = f" ±{row.spreads[column]:.1f}" if column in row.spreads else ""
        cells.append(f"{number:.2f}{spread}")
    return cells


class TestAgainstTheSource:
    @pytest.mark.parametrize("name", PRINTED)
    def test_all_numbers_and_no_others(self, bodies, name):
        table = numbers.table(name)
        ours = Counter(f"{number:.2f}" for row in table.rows for number in row.values.values())
        ours.update(f"{spread:.1f}" for row in table.rows for spread in row.spreads.values())
        assert Counter(re.findall(r"\d+\.\d+", bodies[name])) == ours

    @pytest.mark.parametrize("name", METHODS_DOWN)
    def test_every_cell_in_its_place(self, bodies, name):
        assert grid(bodies[name]) == [as_printed(row) for row in numbers.table(name).rows]

    @pytest.mark.parametrize("name", METHODS_ACROSS)
    def test_every_cell_in_its_place_where_methods_stand_across(self, source, bodies, name):
        table = numbers.table(name)
        assert heading(source, bodies[name]) == ["Method", *(row.printed for row in table.rows)]
        assert grid(bodies[name]) == [
            [column.printed, *(f"{row.values[column.name]:.2f}" for row in table.rows)] for column in table.columns
        ]

    @pytest.mark.parametrize("name", METHODS_DOWN)
    def test_headings_of_columns(self, source, bodies, name):
        table = numbers.table(name)
        first = ["Method", "Venue"] if table.rows[0].venue else ["Method"]
        assert heading(source, bodies[name]) == [*first, *(column.printed for column in table.columns)]

    def test_tables_are_numbered_as_latex_does(self, source):
        labels = [numbers.table(name).label for name in PRINTED]
        places = [source.index(rf"\label{{{label}}}") for label in labels]
        assert places == sorted(places)
        assert len(re.findall(r"\\begin\{tabular\}\{(?!@\{\}#1)", source)) == len(PRINTED)

    def test_figures_are_numbered_as_latex_does(self, source):
        figures = re.findall(r"\\begin\{(wrapfigure|figure\*?)\}(.*?)\\end\{\1\}", source, re.DOTALL)
        assert len(figures) == len(numbers.figures())
        for (_, content), figure in zip(figures, numbers.figures().values(), strict=True):
            labels = set(re.findall(r"\\label\{([^}]*)\}", content))
            assert {figure.label, *(panel.get("label", "") for panel in figure.panels)} - {""} <= labels

    def test_the_source_has_no_points_of_figures(self, source):
        assert "pgfplots" not in source
        assert "tikz" not in source
