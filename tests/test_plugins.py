"""Extensions from outside: by file, by module and by entry point, wherever a name is taken."""

import inspect
import json
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import findtta
from findtta import plugins
from findtta.bench import Planner, RunSpec, run
from findtta.bench.executors import Processes, Ray, Task
from findtta.bench.grid import expand, read
from findtta.bench.naming import named_runs, ordered
from findtta.cli.main import main
from findtta.conformance import KINDS
from findtta.data import corrupt, load
from findtta.data.corrupted import CorruptedDataset
from findtta.data.open import load_as_is
from findtta.errors import InputError, OptionError, UnknownNameError
from findtta.options import split_list
from findtta.partitioners import make_partitioner
from findtta.registry import METHOD, load_method
from findtta.serve.settings import Settings
from findtta.streams import STREAM, make, parse
from made_results import made
from nets import images, same_bits, tiny

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
#: An example of every kind.
NAMES = {
    "method": "my_norm.py:InstanceBlend",
    "stream": "my_stream.py:Bursts",
    "corruption": "my_corruption.py:glare",
    "partitioner": "my_partitioner.py:ByLength",
    "dataset": "my_dataset.py:Stripes",
}
every_kind = pytest.mark.parametrize("what", NAMES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The examples in a folder of their own, which is the working directory."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "examples")
    return tmp_path / "examples"


@pytest.fixture
def installed(monkeypatch):
    """Installs entry points of one group."""

    def install(group, **points):
        found = [EntryPoint(name, value, group) for name, value in points.items()]
        monkeypatch.setattr(plugins, "installed", lambda group: [each for each in found if each.group == group])

    return install


# Names.


def test_packages_installed_meanwhile_are_found(tmp_path, monkeypatch):
    assert "mine" not in METHOD.names()
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" not in METHOD.names()
    metadata = tmp_path / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[findtta.methods]\nmine = mine:Mine\n")
    assert "mine" in METHOD.names()


@every_kind
def test_a_file_a_module_and_an_entry_point_mean_the_same(what, folder, monkeypatch, installed):
    monkeypatch.syspath_prepend(folder)
    kind, name = KINDS[what], NAMES[what]
    module = name.replace(".py", "")
    installed(f"findtta.{what}s", mine=module)
    by_file, by_module, by_point = (kind.load(each) for each in (name, module, "mine"))
    assert by_module is by_point
    assert by_file.__name__ == by_module.__name__
    assert kind.load(str(folder / name)) is by_file
    assert "mine" in kind.names()
    assert kind.available()["mine"] is by_point


@every_kind
def test_a_built_in_name_always_means_the_built_in(what, installed):
    kind = KINDS[what]
    name = next(iter(kind.built_in))
    before = kind.load(name)
    installed(f"findtta.{what}s", **{name: "os:getcwd"})
    assert kind.load(name) is before
    assert kind.names().count(name) == 1


@every_kind
def test_a_broken_package_hides_nothing_else(what, installed):
    kind = KINDS[what]
    installed(f"findtta.{what}s", broken="no_such_package:Thing", wrong="os:sep")
    with pytest.warns(UserWarning, match="of another package cannot be loaded"):
        available = kind.available()
    assert list(available) == list(kind.built_in)
    with pytest.raises(OptionError, match=rf"{what} 'broken' of another package cannot be imported from no_such"):
        kind.load("broken")
    with pytest.raises(OptionError, match=rf"{what} 'wrong' must name .*, but os:sep is the object 'str'"):
        kind.load("wrong")
    with pytest.raises(
        UnknownNameError, match=rf"{what} must be one of .* or file\.py:NAME, got 'brokn'. Did you"
    ):
        kind.load("brokn")


def test_a_home_folder_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert load_method("~/my_norm.py:InstanceBlend").name == "instance-blend"


@every_kind
@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "Mine", r"{what}: 'mine.py' cannot be imported: there is no such file\."),
        ("import os\n\n1 / 0\n", "Mine", r"'mine.py' cannot be imported \(line 3\): ZeroDivisionError: division"),
        ("def broken(:\n", "Mine", r"'mine.py' cannot be imported \(line 1\): SyntaxError"),
        ("import no_such_thing\n", "Mine", r"\(line 1\): ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit('bye')\n", "Mine", r"\(line 1\): SystemExit: bye"),
        (
            "class Mine: pass\n",
            "Mine",
            r"{what} 'mine.py:Mine' must name .*, got the class 'Mine'\. Nothing in it",
        ),
        ("x = 1\n", "Mine", r"{what}: 'mine.py' has no 'Mine'\. Nothing in it is "),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(what, content, name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("mine.py").write_text(content)
    with pytest.raises((OptionError, UnknownNameError), match=message.format(what=what)):
        KINDS[what].load(f"mine.py:{name}")


@every_kind
def test_close_and_suitable_names_of_the_file_are_told(what, folder):
    name = NAMES[what]
    with pytest.raises(UnknownNameError, match=rf"Did you mean '{name.partition(':')[2]}'.* It has "):
        KINDS[what].load(f"{name}s")


def test_a_method_must_say_what_it_is(folder):
    Path("bare.py").write_text("from findtta import Adapted\n\n\nclass Bare(Adapted):\n    name = 'bare'\n")
    with pytest.raises(OptionError, match=r"must set name, summary, citation, but has no summary, citation\."):
        load_method("bare.py:Bare")


# Files.


def test_a_file_is_loaded_once_for_each_content(folder):
    first = load_method("my_norm.py:InstanceBlend")
    assert load_method("../examples/my_norm.py:InstanceBlend") is first
    text = Path("my_norm.py").read_text()
    Path("my_norm.py").write_text(text.replace("0.9", "0.8"))  # same size, perhaps same time
    second = load_method("my_norm.py:InstanceBlend")
    assert (first.options_type().alpha, second.options_type().alpha) == (0.9, 0.8)
    assert sys.modules[first.__module__] is not sys.modules[second.__module__]
    assert "def make_layer" in inspect.getsource(second)
    assert not list(folder.glob("__pycache__"))


def test_objects_of_a_file_go_to_other_processes(folder):
    adapted = findtta.adapt(tiny(), "my_norm.py:InstanceBlend")
    expected = adapted(images())
    assert same_bits(pickle.loads(pickle.dumps(adapted))(images()), expected)
    dataset = load("my_dataset.py:Stripes", count=4)
    Path("dataset.pickle").write_bytes(pickle.dumps(dataset))
    code = "import pickle, sys; print(len(pickle.load(open('dataset.pickle', 'rb'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "8\n", done.stderr
    Path("my_dataset.py").write_text("# another file\n")
    del sys.modules[dataset.__module__]
    with pytest.raises(ImportError, match=r"my_dataset.py has been changed since"):
        pickle.loads(Path("dataset.pickle").read_bytes())


# The grammar of lists.


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (METHOD, "find", ("find", [])),
        (METHOD, "find:alpha=0.9,partitioner=a.py:f", ("find", ["alpha=0.9", "partitioner=a.py:f"])),
        (METHOD, "find:alpha", ("find", ["alpha"])),
        (METHOD, "mine.py:Mine", ("mine.py:Mine", [])),
        (METHOD, "a/mine.py:Mine:beta=0.3,n=2", ("a/mine.py:Mine", ["beta=0.3", "n=2"])),
        (METHOD, "package.module:Mine:beta=0.3", ("package.module:Mine", ["beta=0.3"])),
        (STREAM, "mine.py:Bursts:length=3", ("mine.py:Bursts", ["length=3"])),
    ],
)
def test_names_are_split_from_their_options(kind, text, expected):
    assert kind.split(text) == expected


entries = st.builds(
    lambda name, options: name + (":" + ",".join(options) if options else ""),
    st.sampled_from(["find", "mine.py:Mine", "a/b.py:C", "module.sub:Name", "wild"]),
    st.lists(st.sampled_from(["alpha=0.9", "partitioner=mine.py:split", "delta=1", "name=x"]), max_size=3),
)


@given(st.lists(entries, min_size=1, max_size=5))
def test_lists_of_names_with_options_are_split_where_they_were_joined(listed):
    assert split_list(",".join(listed)) == listed
    for entry in listed:
        name, options = METHOD.split(entry)
        assert entry == name + (":" + ",".join(options) if options else "")


@pytest.mark.parametrize(
    ("name", "public", "below"),
    [
        ("find", "find", "find"),
        ("a/b/mine.py:Mine", "mine.py:Mine", "/g/a/b/mine.py:Mine"),
        ("/a/mine.py:haze@3", "mine.py:haze@3", "/a/mine.py:haze@3"),
        ("mine.py:Bursts:length=3", "mine.py:Bursts:length=3", "/g/mine.py:Bursts:length=3"),
        ("package.module:Mine", "package.module:Mine", "package.module:Mine"),
        ("wild:delta=0.1", "wild:delta=0.1", "wild:delta=0.1"),
    ],
)
def test_names_lose_the_folder_of_a_file_or_get_one(name, public, below):
    assert plugins.public_name(name) == public
    assert plugins.below(name, Path("/g")) == below


# The library.


def test_streams_and_corruptions_of_files(folder):
    data = load("shapes", count=12).pick(["fog", "my_corruption.py:glare", "my_corruption.py:glare@2"], (1, 5))
    assert data.domains == (
        "fog@1",
        "fog@5",
        "my_corruption.py:glare@1",
        "my_corruption.py:glare@5",
        "my_corruption.py:glare@2",
    )
    rows = np.array([7, 2])
    clean = load_as_is("shapes", count=12).images("clean", rows)
    expected = corrupt(clean, str(folder / "my_corruption.py:glare"), 2, index=rows)
    assert np.array_equal(data.images("my_corruption.py:glare@2", rows), expected)
    stream = make(str(folder / "my_stream.py:Bursts"), data, batch_size=4, length=1)
    assert (stream.scenario, dict(stream.settings)) == ("my_stream.py:Bursts", {"length": 1})
    assert parse("my_stream.py:Bursts:length=3") == ("my_stream.py:Bursts", {"length": 3})
    with pytest.raises(UnknownNameError, match=r"stream 'my_stream.py:Bursts' has no option 'lenght'"):
        parse("my_stream.py:Bursts:lenght=3")


def test_a_part_can_be_extended_only_if_it_has_all_domains(folder):
    data = load("shapes", count=8)
    matched = findtta.data.dataset._Part(data, data.domains, classes=data.classes[::-1])
    part = matched.pick(["my_corruption.py:glare"])
    assert part.domains == ("my_corruption.py:glare@5",)
    assert np.array_equal(part.labels(part.domains[0]), 9 - data.labels("clean"))
    with pytest.raises(UnknownNameError, match=r"has no 'my_corruption.py:glare@5'"):
        data.pick(["fog"]).pick(["my_corruption.py:glare"])
    with pytest.raises(UnknownNameError, match=r"has no 'fgo@5'\. Did you mean 'fog@5'"):
        data.pick(["my_corruption.py:glare", "fgo"])


def test_corruptions_of_one_name_are_not_confused(folder):
    shutil.copytree(folder, folder / "other")
    text = Path("my_corruption.py").read_text()
    Path("other/my_corruption.py").write_text(text.replace("255 - images", "100 - images"))
    with pytest.raises(OptionError, match=r"both called 'my_corruption.py:glare'"):
        load("shapes", count=8).pick(["my_corruption.py:glare", "other/my_corruption.py:glare"])


def test_what_a_corruption_returns_is_checked(folder):
    Path("wrong.py").write_text("def half(images, keys, severity):\n    return images / 2\n")
    with pytest.raises(InputError, match=r"corruption 'wrong.py:half' must return uint8 images of shape"):
        corrupt(np.zeros((2, 32, 32, 3), np.uint8), "wrong.py:half")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("my_dataset.py:Stripes", "count2 is not an option of my_dataset.py:Stripes"),
        ("bad.py:number", "must return a findtta.data.DomainDataset, got a int"),
        ("bad.py:Nameless", "must have name"),
        ("bad.py:needs_root", "missing 1 required positional argument"),
    ],
)
def test_datasets_of_files_that_cannot_be_opened(source, message, folder):
    Path("bad.py").write_text(
        "from findtta.data import DomainDataset\n\n\ndef number():\n    return 3\n\n\n"
        "class Nameless(DomainDataset):\n    def labels(self, domain): ...\n\n"
        "    def images(self, domain, rows): ..."
        "\n\n\ndef needs_root(root): ...\n"
    )
    with pytest.raises(OptionError, match=re.escape(message)):
        load(source, **({"count2": 3} if "Stripes" in source else {}))


def test_a_clean_dataset_of_a_file_is_corrupted_on_the_fly_with_its_seed(folder):
    Path("plain.py").write_text(
        "from findtta.data.shapes import Shapes\n\n\ndef drawn(count=5, seed=0):\n"
        "    return Shapes(count=count, seed=seed)\n"
    )
    data = load("plain.py:drawn", seed=3)
    assert isinstance(data, CorruptedDataset)
    assert (data.seed, data.clean.seed, len(data.labels("fog@5"))) == (3, 3, 5)
    assert load_as_is("plain.py:drawn", count=7).domains == ("clean",)


def test_partitioners_of_files(folder):
    batch = images()
    by_name = findtta.adapt(tiny(), partitioner="my_partitioner.py:by_sign")
    function = plugins.find_object("partitioner", "my_partitioner.py:by_sign", callable, "a function")
    assert same_bits(by_name(batch), findtta.adapt(tiny(), partitioner=function)(batch))
    assert make_partitioner("my_partitioner.py:ByLength", {"groups": 4}).groups == 4
    with pytest.raises(UnknownNameError, match=r"'my_partitioner.py:ByLength' has no option 'group'"):
        make_partitioner("my_partitioner.py:ByLength", {"group": 4})
    with pytest.raises(OptionError, match="subclass of Partitioner"):
        make_partitioner("my_partitioner.py:by_sign", {"groups": 4})


# Runs.

SMALL = {"data_options": {"count": 12}, "batch_size": 8}
ALL_AT_ONCE = {
    **SMALL,
    "method": "find",
    "options": {"partitioner": "my_partitioner.py:ByLength"},
    "stream": "my_stream.py:Bursts:length=1",
    "domains": ("fog", "my_corruption.py:glare@3"),
}


def test_a_function_in_a_run_is_refused_with_the_fix():
    with pytest.raises(
        OptionError, match=r"partitioner of a run must be .* got <function.*give .* 'file\.py:NAME'"
    ):
        RunSpec(options={"partitioner": lambda features: features})


def test_results_have_names_without_folders_and_do_not_depend_on_them(folder, monkeypatch):
    here = run(RunSpec(**ALL_AT_ONCE))
    monkeypatch.chdir(folder.parent)
    there = {
        **ALL_AT_ONCE,
        "options": {"partitioner": "examples/my_partitioner.py:ByLength"},
        "stream": "examples/my_stream.py:Bursts:length=1",
        "domains": ("fog", "examples/my_corruption.py:glare@3"),
    }
    assert run(RunSpec(**there)).digest == here.digest
    assert "examples" not in json.dumps(here.config)
    assert here.config["options"]["partitioner"] == "my_partitioner.py:ByLength"
    assert here.config["stream"]["scenario"] == "my_stream.py:Bursts"
    assert here.config["data"]["domains"] == ["fog@5", "my_corruption.py:glare@3"]
    (named,) = named_runs([here])
    assert named.words["method"] == "find (partitioner=my_partitioner.py:ByLength)"
    assert named.words["stream"] == "my_stream.py:Bursts:length=1"
    assert "my_stream.py:Bursts" in named.filter_values("stream")
    own = run(RunSpec(**SMALL, method="examples/my_norm.py:InstanceBlend", domains=("fog",)))
    assert own.config["method"] == "my_norm.py:InstanceBlend"


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("my_norm.py", {"method": "my_norm.py:InstanceBlend"}),
        ("my_corruption.py", {"domains": ("fog", "my_corruption.py:glare@3")}),
        ("my_partitioner.py", {"options": {"partitioner": "my_partitioner.py:ByLength"}}),
        ("my_partitioner.py", {"options": {"partitioner": "my_partitioner.py:by_sign"}}),
        ("my_dataset.py", {"data": "my_dataset.py:Stripes", "model": "my_model.py:make"}),
    ],
)
def test_another_code_of_an_extension_is_another_run(file, settings, folder):
    def digest() -> str:
        return Planner().plan(RunSpec(**{"data_options": {"count": 12}, "batch_size": 8, **settings})).digest

    before = digest()
    assert digest() == before
    text = Path(file).read_text()
    Path(file).write_text(f"{text}\n\n# a comment more\n")
    assert digest() == before
    Path(file).write_text(f"{text}\n\nMORE = 1\n")
    assert digest() != before


def test_results_of_extensions_that_are_gone_are_named_without_running_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("raise SystemExit('must not run')\n")
    results = [
        made("mine.py:Mine", options={"beta": 0.3, "partitioner": "a/b.py:c"}, stream="mine.py:Bursts"),
        made("uninstalled", stream="mine.py:Bursts", stream_settings={"length": 3}),
    ]
    named = named_runs(results)
    assert named[0].words["method"] == "mine.py:Mine (beta=0.3, partitioner=b.py:c)"
    assert {run.words["stream"] for run in named} == {"mine.py:Bursts", "mine.py:Bursts:length=3"}
    keys = [("mine.py:Mine",), ("find",), ("find (alpha=0.9)",), ("uninstalled",)]
    assert ordered(["method"], keys)[:2] == [("find",), ("find (alpha=0.9)",)]


def test_files_of_a_grid_are_relative_to_it(folder, tmp_path, monkeypatch):
    (folder / "grid.toml").write_text(
        """
        domains = ["fog", "my_corruption.py:glare@2"]
        options = { partitioner = "my_partitioner.py:by_sign" }
        [grid]
        methods = ["find:alpha=0.9", "find-star"]
        streams = ["crossmix", "my_stream.py:Bursts:length=3"]
        data = ["shapes", "my_dataset.py:Stripes"]
        """
    )
    monkeypatch.chdir(tmp_path)
    specs = expand(read("examples/grid.toml"))
    assert len(specs) == 8
    assert {spec.stream for spec in specs} == {"crossmix", "examples/my_stream.py:Bursts:length=3"}
    assert {spec.data for spec in specs} == {"shapes", "examples/my_dataset.py:Stripes"}
    assert {spec.options["partitioner"] for spec in specs} == {"examples/my_partitioner.py:by_sign"}
    assert {spec.domains for spec in specs} == {("fog", "examples/my_corruption.py:glare@2")}
    (folder / "own.toml").write_text("[grid]\nmethods = ['my_norm.py:Nothing']\n")
    with pytest.raises(UnknownNameError, match=r"grid: .*own.toml: method: .* has no 'Nothing'"):
        read("examples/own.toml")


@pytest.mark.filterwarnings("default")  # Ray has warnings of its own
@pytest.mark.parametrize(
    "executor",
    [
        pytest.param("processes", marks=pytest.mark.slow),
        pytest.param("ray", marks=pytest.mark.nightly),  # a file of one's own on Ray: bench/test_executors.py
    ],
)
def test_extensions_work_in_other_processes(executor, folder):
    if executor == "ray":
        pytest.importorskip("ray")
    planner = Planner()
    learner = {**SMALL, "method": "my_learner.py:PseudoLabel", "domains": ("fog",)}
    wanted = [Task.of(planner.plan(RunSpec(**each))) for each in (ALL_AT_ONCE, learner)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = Processes(2, threads=1) if executor == "processes" else Ray(workers=2, threads=1)
        results = {each.digest: each for each in chosen.execute(wanted)}
    for task in wanted:
        assert results[task.digest].is_done, results[task.digest].error_text
        assert results[task.digest].accuracy == run(task.spec).accuracy


# Commands.


def flags(**settings: str) -> list[str]:
    small = {"images": "12", "batch_size": "8", "domains": "fog,snow", **settings}
    return [part for name, value in small.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "my_norm.py:InstanceBlend", "option": "alpha=0.8"},
        {"method": "my_learner.py:PseudoLabel", "option": "confidence=0.6"},
        {"stream": "my_stream.py:Bursts:length=3"},
        {"domains": "fog,my_corruption.py:glare@3"},
        {"option": "partitioner=my_partitioner.py:by_sign"},
        {"data": "my_dataset.py:Stripes", "model": "my_model.py:make", "domains": "wide,narrow"},
    ],
    ids=lambda settings: next(value for value in settings.values() if ".py" in value),
)
def test_every_example_runs(settings, folder, capsys):
    assert main(["run", *flags(**settings), "--no-store"]) == 0
    printed = capsys.readouterr().out
    named = next(value for value in settings.values() if ".py" in value).partition("=")[2] or "my_"
    assert named.partition(":")[0] in printed


def test_lists_of_bench_take_them(folder, capsys, tmp_path):
    methods = "find:partitioner=my_partitioner.py:by_sign,alpha=0.9,my_norm.py:InstanceBlend:alpha=0.8"
    words = ["--methods", methods, "--streams", "crossmix,my_stream.py:Bursts:length=3", "--runs", str(tmp_path)]
    assert main(["bench", *flags(), *words]) == 0
    printed = capsys.readouterr().out
    assert "4 done, 0 skipped, 0 failed" in printed
    assert "my_norm.py:InstanceBlend (alpha=0.8)" in printed
    assert "find (alpha=0.9, partitioner=my_partitioner.py:by_sign)" in printed
    assert main(["results", "--compare", "--stream", "my_stream.py:Bursts", "--runs", str(tmp_path)]) == 0
    assert "my_stream.py:Bursts:length=3" in capsys.readouterr().out


def test_other_commands_take_them(folder, capsys):
    assert main(["methods", "my_learner.py:PseudoLabel"]) == 0
    assert "confidence = None: probability" in capsys.readouterr().out
    assert main(["streams", "list"]) == 0
    assert re.search(r"wild .*delta=0\.1", capsys.readouterr().out)
    assert main(["streams", "show", *flags(domains="fog"), "--stream", "my_stream.py:Bursts"]) == 0
    assert "my_stream.py:Bursts:length=2: a few batches" in capsys.readouterr().out
    assert main(["data", "show", "my_dataset.py:Stripes", "-o", "stripes.png"]) == 0
    assert "stripes: 200 images of 32x32" in capsys.readouterr().out
    assert main(["data", "show", "shapes", "--domains", "my_corruption.py:glare", "-o", "glare.png"]) == 0
    assert main(["run", "--method", "my_norm.py:InstanceBlendd"]) == 2
    assert "Did you mean 'InstanceBlend'" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["arrays", "folders"])
def test_data_make_writes_them_and_they_are_read_again(layout, folder, capsys):
    Path("few.py").write_text(
        "from findtta.data.shapes import Shapes\n\n\ndef few():\n    return Shapes(count=6)\n"
    )
    words = ["--from", "few.py:few", "--corruptions", "fog", "my_corruption.py:glare", "--severities", "2"]
    assert main(["data", "make", "few-c", *words, "--layout", layout, "-o", "made", "--quiet"]) == 0
    made = load("made")
    assert made.domains == ("fog@2", "my_corruption.py:glare@2")
    rows = np.arange(6)
    drawn = load("few.py:few").pick(["my_corruption.py:glare@2"])
    if layout == "arrays":
        assert np.array_equal(made.images(made.domains[1], rows), drawn.images(drawn.domains[0], rows))


def test_predict_and_serve_take_them(folder, tmp_path):
    from PIL import Image

    for number in range(3):
        Image.new("RGB", (32, 32), (80 * number, 10, 10)).save(tmp_path / f"{number}.png")
    words = ["--input", str(tmp_path), "--output", str(tmp_path / "out"), "--format", "jsonl"]
    assert main(["predict", *words, "--method", "my_norm.py:InstanceBlend", "--executor", "local"]) == 0
    settings = Settings(method=str(folder / "my_norm.py:InstanceBlend"))
    assert settings.method_name == "my_norm.py:InstanceBlend"
    with pytest.raises(OptionError, match="learns from every batch"):
        Settings(method="my_learner.py:PseudoLabel").require_servable()


@pytest.mark.parametrize("name", [*NAMES.values(), "my_learner.py:PseudoLabel", "my_partitioner.py:by_sign"])
def test_every_example_passes_its_checks(name, folder, capsys):
    assert main(["check", name]) == 0, capsys.readouterr().out


# The pages.


def test_the_pages_show_the_examples_as_they_are():
    page = "".join(path.read_text() for path in sorted((ROOT / "docs" / "how-to").glob("own-*.md")))
    files = sorted(EXAMPLES.glob("*.py"))
    assert {name.partition(":")[0] for name in NAMES.values()} <= {path.name for path in files}
    for path in files:
        assert f"```python\n# examples/{path.name}\n{path.read_text()}```" in page, path.name
