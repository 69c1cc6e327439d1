"""Scripts that complete the command line in a shell: shtab makes them of the parser, and they start no Python."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

FILES = ("GT", "DT", "QRELS", "RUN", "FILE", "OTHER", "REPORT")  # metavars
NAMED = ("NAME", "RULE")  # those whose help ends in the names: `of text files: xyxy | xywh | cxcywh`


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script.

    Args:
        parser: of all commands; is changed.
        shell: ``"bash"``, ``"zsh"`` or ``"tcsh"``.

    Raises:
        ImportError: without shtab, the extra ``completion``.
    """
    try:
        import shtab
    except ImportError as error:
        raise ImportError('Completion needs shtab: pip install "torchmetrics-map[completion]"') from error
    for action in _actions(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in NAMED and " | " in str(action.help):
            action.choices = [name.split()[-1] for name in str(action.help).split(" | ")]
    script: str = shtab.complete(parser, shell)
    return script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of the parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
