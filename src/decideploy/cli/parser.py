"""The command line of ``decideploy``."""

from __future__ import annotations

import argparse

from decideploy import __version__
from decideploy.cli import asking, files, machine, server, supply
from decideploy.cli.output import Command

SUMMARY = "One verb for each stage, and the same value as a table or as JSON."


def make_parser() -> argparse.ArgumentParser:
    """The parser of every verb."""
    parser = argparse.ArgumentParser(prog="decideploy", description=SUMMARY)
    parser.add_argument("--version", action="version", version=f"decideploy {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, command: Command, summary: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="print a JSON document instead of a table")
        return sub

    for module in (supply, files, server, machine, asking):
        module.add_verbs(verb)
    return parser
