"""Print a script by which a shell completes commands and options."""

import argparse
from pathlib import Path

from findtta._extras import require
from findtta.cli.main import build_parser
from findtta.registry import method_names
from findtta.streams import SCENARIOS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``findtta completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    shtab = require("shtab", "completion", "completion in a shell")
    names = {"method": method_names(), "stream": list(SCENARIOS)}
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for action in (action for command in commands.choices.values() for action in command._actions):
        if action.type is Path:
            action.complete = shtab.FILE
        elif action.dest in names and not action.choices:  # this parser only describes, and refuses nothing
            action.choices = names[action.dest]
    print(shtab.complete(parser, arguments.shell))
    return 0
