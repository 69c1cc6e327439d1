"""The commands of the command line: options in, the text to print out."""

from map_metrics.commands.detection import detection
from map_metrics.commands.rankings import ranking
from map_metrics.commands.shared import Options, Step

__all__ = ["run"]


def run(options: Options, step: Step) -> str:
    """The text that a command prints.

    Args:
        options: what the parser made of the command line.
        step: is told what is being done.

    Raises:
        ValueError: for a mistake in an option or a file.
        OSError: for a file that cannot be opened.
    """
    command = detection if options["command"] == "detection" else ranking
    return command(options, step).text(options["format"])
