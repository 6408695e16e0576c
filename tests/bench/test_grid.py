from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import findtta
from findtta.bench.grid import AXES, Grid, expand, find, presets, read
from findtta.bench.plan import IMAGES, RunSpec
from findtta.errors import FindTTAError, InputError, OptionError, UnknownNameError
from findtta.options import parse_value, split_list


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "grid.toml"
        path.write_text(text)
        return path

    return write


def test_a_file_gives_every_combination_with_methods_innermost(write):
    path = write(
        """
        about = "an example"
        images = 7
        domains = ["fog", "snow"]
        options = { alpha = 0.5 }
        [grid]
        methods = ["find", { method = "find", options = { alpha = 0.9 } }]
        streams = ["crossmix", "wild:delta=0.01"]
        seeds = [0, 1]
        """
    )
    grid = read(path)
    assert grid.about == "an example"
    specs = expand(grid)
    assert [(spec.stream, spec.seed, spec.options["alpha"]) for spec in specs] == [
        ("crossmix", 0, 0.5),
        ("crossmix", 0, 0.9),
        ("crossmix", 1, 0.5),
        ("crossmix", 1, 0.9),
        ("wild:delta=0.01", 0, 0.5),
        ("wild:delta=0.01", 0, 0.9),
        ("wild:delta=0.01", 1, 0.5),
        ("wild:delta=0.01", 1, 0.9),
    ]
    assert {(spec.images, spec.domains) for spec in specs} == {(7, ("fog", "snow"))}


def test_without_lists_there_is_one_run():
    assert expand(Grid()) == [RunSpec()]


def test_an_entry_may_bring_settings_of_its_own(write):
    path = write(
        """
        [grid]
        models = [
          { model = "resnet20", weights = "ten.pt", data = "cifar10-c" },
          { model = "resnet20", weights = "hundred.pt", data = "cifar100-c", images = 3 },
        ]
        batch_sizes = [16, 64]
        """
    )
    specs = expand(read(path))
    assert [(spec.data, spec.images, spec.batch_size) for spec in specs] == [
        ("cifar10-c", IMAGES, 16),
        ("cifar10-c", IMAGES, 64),
        ("cifar100-c", 3, 16),
        ("cifar100-c", 3, 64),
    ]


def test_runs_that_are_the_same_come_once(write):
    path = write(
        """
        [grid]
        methods = ["find:alpha=0.9", "tbn", { method = "find", options = { alpha = 0.9 } }, "tbn"]
        seeds = [0, 0]
        """
    )
    assert [(spec.method, spec.options) for spec in expand(read(path))] == [("find", {"alpha": 0.9}), ("tbn", {})]


def test_paths_are_relative_to_the_file(write, tmp_path):
    (tmp_path / "photos").mkdir()
    path = write(
        """
        [grid]
        data = ["shapes", "cifar10-c", "photos", "elsewhere", "/absolute/folder"]
        models = [
          { model = "resnet20", weights = "weights/a.pt" },
          { model = "resnet20", weights = "/absolute/b.pt" },
          "nets/mine.py:make",
          "c.safetensors",
          "package.module:make",
          "timm:resnet18",
          "shapes-resnet26",
        ]
        """
    )
    specs = expand(read(path))
    assert list(dict.fromkeys(spec.data for spec in specs)) == [
        "shapes",
        "cifar10-c",
        str(tmp_path / "photos"),
        "elsewhere",
        "/absolute/folder",
    ]
    assert [(spec.model, spec.weights) for spec in specs[:7]] == [
        ("resnet20", str(tmp_path / "weights" / "a.pt")),
        ("resnet20", "/absolute/b.pt"),
        (f"{tmp_path / 'nets' / 'mine.py'}:make", None),
        (str(tmp_path / "c.safetensors"), None),
        ("package.module:make", None),
        ("timm:resnet18", None),
        ("shapes-resnet26", None),
    ]


def test_flags_replace_lists_and_win_over_settings(write):
    grid = read(
        write(
            """
            images = 7
            data_options = { count = 10 }
            [grid]
            methods = ["find", "tbn"]
            streams = [{ stream = "static", images = 9 }, "crossmix"]
            """
        )
    )
    changed = grid.changed({"methods": ["find:alpha=0.1"]}, {"images": 3, "data_options": {"seed": 4}})
    assert [(spec.method, spec.options, spec.stream, spec.images) for spec in expand(changed)] == [
        ("find", {"alpha": 0.1}, "static", 3),
        ("find", {"alpha": 0.1}, "crossmix", 3),
    ]
    assert {tuple(spec.data_options.items()) for spec in expand(changed)} == {(("count", 10), ("seed", 4))}
    assert [spec.images for spec in expand(grid)] == [9, 9, 7, 7]


def test_an_entry_that_the_grid_has_keeps_its_settings(write):
    grid = read(
        write(
            """
            images = 7
            [grid]
            methods = [{ method = "find", options = { alpha = 0.9 }, seed = 5 }]
            streams = [{ stream = "static", images = 9 }, "crossmix"]
            """
        )
    )
    methods = ["find", "find:alpha=0.9"]
    changed = expand(grid.changed({"streams": ["static", "shuffle"], "methods": methods}, {}))
    assert [(spec.stream, spec.images, spec.options, spec.seed) for spec in changed] == [
        ("static", 9, {}, 0),
        ("static", 9, {"alpha": 0.9}, 5),
        ("shuffle", 7, {}, 0),
        ("shuffle", 7, {"alpha": 0.9}, 5),
    ]


@pytest.mark.parametrize(
    ("text", "error", "messages"),
    [
        ("images = 7\nmethods ==", InputError, ["grid.toml", "line 2"]),
        ("imges = 7", UnknownNameError, ["grid.toml", "at the top there is no 'imges'", "'images'"]),
        ("[grid]\nmethod = ['find']", UnknownNameError, ["in [grid] there is no 'method'", "top of the file"]),
        ("methods = ['find']", UnknownNameError, ["no 'methods'", "It is a list of [grid]"]),
        ("[grid]\nmthods = ['find']", UnknownNameError, ["no 'mthods'", "Did you mean 'methods'"]),
        ("[grid]\nmethods = ['fnd']", UnknownNameError, ["got 'fnd'", "Did you mean 'find'"]),
        ("[grid]\nmethods = [{ metod = 'find' }]", UnknownNameError, ["no 'metod'", "Did you mean 'method'"]),
        ("[grid]\nmethods = [{ options = {} }]", OptionError, ["an entry of methods must have a 'method'"]),
        ("[grid]\nmethods = ['find:alpha']", OptionError, ["must look like NAME=VALUE"]),
        ("[grid]\nmethods = ['find:alpha=2']", OptionError, ["alpha must be a number from 0 to 1"]),
        ("[grid]\nmethods = ['tbn:alpha=1']", UnknownNameError, ["'tbn' has no option 'alpha'"]),
        ("[grid]\nmethods = 'find'", OptionError, ["methods must be a list"]),
        ("[grid]\nmethods = []", OptionError, ["methods must be a list with at least one entry"]),
        ("[grid]\nmethods = [3]", OptionError, ["method must be a text, got 3"]),
        ("[grid]\nstreams = ['wild:dlta=1']", UnknownNameError, ["Did you mean 'delta'"]),
        ("[grid]\nseeds = ['0']", OptionError, ["seed must be a whole number from 0", "got '0'"]),
        ("grid = 3", OptionError, ["[grid] must be a table"]),
        ("weights = 3", OptionError, ["weights must be a text"]),
        ("domains = 'fog'", OptionError, ["domains must be a tuple or list"]),
    ],
)
def test_mistakes_in_a_file_are_named(write, text, error, messages):
    with pytest.raises(error) as caught:
        read(write(text))
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_what_is_no_text_is_refused(tmp_path, content):
    path = tmp_path / "grid.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"grid\.toml"):
        read(path)


def test_grids_are_found_by_path_or_by_name(write, tmp_path):
    path = write("[grid]\nmethods = ['tbn']")
    assert [spec.method for spec in expand(find(str(path)))] == ["tbn"]
    assert find("quick") == presets()["quick"]
    with pytest.raises(UnknownNameError, match="Did you mean 'quick'"):
        find("quik")
    with pytest.raises(InputError, match="there is no file"):
        find(str(tmp_path / "other.toml"))


def test_every_preset_says_what_it_is_for_and_can_be_expanded():
    found = presets()
    assert {"quick", "methods"} <= found.keys()
    for grid in found.values():
        assert grid.about
        assert expand(grid)


def test_the_preset_of_methods_has_them_all():
    specs = expand(find("methods"))
    assert {spec.method for spec in specs} == set(findtta.methods())
    assert {spec.stream for spec in specs} == {"crossmix", "random:variant=paper", "shuffle", "static"}


def test_the_quick_preset_computes_no_gradients():
    needs_grad = {name: method.needs_grad for name, method in findtta.methods().items()}
    assert not any(needs_grad[spec.method] for spec in expand(find("quick")))


def test_every_axis_names_a_setting():
    for setting in AXES.values():
        assert hasattr(RunSpec(), setting)


ENTRY = st.from_regex(r"[a-z]{1,5}(:[a-z]{1,3}=[0-9](,[a-z]{1,3}=[0-9]){0,2})?", fullmatch=True)


@given(st.lists(ENTRY))
def test_lists_split_as_they_were_joined(entries):
    assert split_list(",".join(entries)) == entries
    assert split_list(", ".join(entry.replace(",", ", ") for entry in entries)) == entries


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.9", 0.9), ("3", 3), ("True", True), ("null", None), ("None", "None"), ('["a"]', ["a"]), ("sgd", "sgd")],
)
def test_values_are_read_as_what_they_look_like(text, value):
    assert parse_value(text) == value


def test_all_errors_are_of_one_family(write):
    with pytest.raises(FindTTAError):
        read(write("x = 1"))
