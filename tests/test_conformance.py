"""All that is built in passes every check, and each check notices what breaks it."""

import re

import pytest

from broken_plugins import BROKEN
from findtta import conformance
from findtta.cli.main import main
from findtta.conformance import KINDS, Subject, check
from findtta.errors import FindTTAError, MissingExtraError

BUILT_IN = [(what, name) for what, kind in KINDS.items() for name in kind.built_in]
CHECKS = {each.__name__: each for checks in conformance._checks.values() for each in checks}


QUICKER = {"cotta": "cotta:views=2"}  # in place of 32


@pytest.mark.parametrize(("what", "name"), BUILT_IN)
def test_everything_built_in_passes_every_check(what, name):
    try:
        outcomes = check(QUICKER.get(name, name), what)
    except MissingExtraError:
        pytest.skip("an extra is not installed")
    assert [outcome for outcome in outcomes if outcome.status == "failed"] == []
    assert any(outcome.status == "passed" for outcome in outcomes)


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_notices_what_breaks_it(name):
    assert BROKEN[name]
    title = CHECKS[name].__doc__.rstrip(".")
    for reference, message in BROKEN[name]:
        subject = Subject(reference, conformance._kind_of(reference, None).load(reference), {})
        outcome = conformance._outcome(CHECKS[name], subject)
        assert (outcome.check, outcome.status) == (title, "failed"), reference
        assert re.search(message, outcome.why), (reference, outcome.why)


def test_what_does_not_apply_is_skipped_with_a_reason():
    outcomes = {outcome.check: outcome for outcome in check("tent")}
    skipped = {outcome.why for outcome in outcomes.values() if outcome.status == "skipped"}
    assert skipped == {
        "it is stateful, so that the order of the calls matters",
        "it is declared not to be exportable",
    }


def test_the_command_prints_a_table_and_fails_if_a_check_does(capsys):
    assert main(["check", "broken_plugins:one_severity"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"each in its own way +failed +mean changes at severity", printed)
    assert main(["check", "wild:delta=0.5"]) == 0
    assert "failed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("random", None, "'random' is a stream and a partitioner"),
        ("no-such-name", None, "name must be that of a method"),
        ("find", "metod", "kind must be one of"),
        ("nowhere.py:Mine", None, "there is no such file"),
    ],
)
def test_what_cannot_be_checked_is_refused(name, kind, message):
    with pytest.raises(FindTTAError, match=re.escape(message)):
        check(name, kind)


def test_a_name_of_two_kinds_is_checked_as_the_one_asked_for():
    titles = [{outcome.check for outcome in check("random", kind)} for kind in ("partitioner", "stream")]
    assert [any("passes" in title or "seed" in title for title in each) for each in titles] == [False, True]
