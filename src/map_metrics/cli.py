"""The command line: read files, compute, print. Options have the names of the Python arguments."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

GIVEN = argparse.SUPPRESS  # an option that is not given leaves no trace: the class has the defaults
OK, BAD_INPUT = 0, 2
EXAMPLES = {
    "detection": """\
examples:
  map-metrics detection instances_val2017.json results.json --per-class
  map-metrics detection instances_val2017.json results.json --iou-type segm --save state.npz
  map-metrics detection --state state.npz --iou-thresholds 0.5
  map-metrics detection ground-truth/ detection-results/ --protocol voc2012
  map-metrics detection labelTxt/ Task1_results/ --iou-type obb --protocol voc2007""",
    "retrieval": """\
examples:
  map-metrics retrieval qrels.txt run.txt --preset trec --per-query
  map-metrics retrieval qrels.txt run.txt --top-k 10 100 --compare baseline.txt""",
    "hashing": """\
examples:
  map-metrics hashing codes.npz --top-k 5000 --num-queries 1000
  map-metrics hashing codes.npz --preset hashing --top-k 5000 --worst 10""",
    "embedding": """\
examples:
  map-metrics embedding vectors.npz --similarity cosine --top-k 1 10 100""",
}


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}\n")


# --- options ----------------------------------------------------------------------------------------------------------


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _cutoff(text: str) -> int | str:
    if text == "R":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers or R, got {text!r}") from None


def _output_options(parser: argparse.ArgumentParser, rows: str) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("table", "tsv", "json"), default="table", help="default: table")
    group.add_argument(f"--per-{rows}", dest="per_row", action="store_true", help=f"a row for each {rows}")
    group.add_argument("--worst", type=int, metavar="N", help="the N rows of the lowest average precision")
    group.add_argument("--by", metavar="FILE", help="the numbers of groups: a file of lines `name group`, or JSON")
    group.add_argument("--compare", metavar="OTHER", help="paired differences to another such file, with an interval")
    group.add_argument("--html", metavar="REPORT", help="write the result as one self-contained page")
    group.add_argument("--save", metavar="FILE", help="keep what was read, for --state")
    group.add_argument("--state", metavar="FILE", help="take what --save (or metric.save) kept, instead of the files")


def _convention_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conventions (as in Python)")
    group.add_argument(
        "--preset", metavar="NAME", help="of map_metrics.presets: trec, kaggle, hashing, torchmetrics, ..."
    )
    group.add_argument("--top-k", nargs="+", type=_cutoff, default=GIVEN, metavar="K", help="cut-offs, or R")
    texts = {
        "denominator": "relevant | min | hits | k",
        "ties": "expected | optimistic | pessimistic | stable | threshold",
        "interpolation": "step | trapezoid | envelope | 11-point | 40-point | 101-point",
        "empty-target-action": "neg | pos | skip | error",
        "aggregation": "mean | median | min | max",
    }
    for name, text in texts.items():
        group.add_argument(f"--{name}", default=GIVEN, metavar="NAME", help=text)


def _detection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ground_truth", nargs="?", metavar="GT", help="COCO JSON, or a folder of VOC XML or text files")
    parser.add_argument("detections", nargs="?", metavar="DT", help="COCO results, or a folder of text files")
    group = parser.add_argument_group("files")
    group.add_argument("--box-format", default="xyxy", metavar="NAME", help="of text files: xyxy | xywh | cxcywh")
    group.add_argument("--sizes", metavar="FILE", help="lines `name width height`: the text files are YOLO's")
    group.add_argument("--classes", metavar="FILE", help="a class name a line, for folders")
    group.add_argument("--skip-unknown", action="store_true", help="leave out detections of unknown images or classes")
    group = parser.add_argument_group("conventions (as in Python)")
    group.add_argument(
        "--protocol",
        default=GIVEN,
        metavar="NAME",
        help="coco | coco-keypoints | voc2007 | voc2012 | lvis | openimages",
    )
    group.add_argument("--iou-type", nargs="+", default=GIVEN, metavar="NAME", help="bbox | segm | obb | keypoints")
    group.add_argument("--iou-thresholds", nargs="+", type=float, default=GIVEN, metavar="T")
    group.add_argument("--rec-thresholds", nargs="+", type=float, default=GIVEN, metavar="R")
    group.add_argument("--max-detection-thresholds", nargs="+", type=int, default=GIVEN, metavar="N")
    group.add_argument("--average", default=GIVEN, metavar="NAME", help="macro | micro")
    group.add_argument("--hierarchy", metavar="FILE", help="JSON: which class stands above which (Open Images)")
    group.add_argument("--sigmas", nargs="+", type=float, default=GIVEN, metavar="S", help="one per keypoint")
    _output_options(parser, "class")


def _retrieval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "qrels", nargs="?", metavar="QRELS", help="judgments: TREC's text or JSON, gzip or not; or parquet"
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run, the same")
    group = parser.add_argument_group("files")
    group.add_argument("--level", type=int, default=1, help="the grade from which a document is relevant; default: 1")
    group.add_argument("--skip-unanswered", action="store_true", help="leave out queries that the run does not answer")
    group.add_argument("--max-documents", type=int, metavar="N", help="only the first N of each query are retrieved")
    group.add_argument("--integer-ids", action="store_true", help="names are integers, and order equal scores upwards")
    _convention_options(parser)
    parser.add_argument(
        "--largest", action=argparse.BooleanOptionalAction, default=GIVEN, help="whether a large score is a good one"
    )
    _output_options(parser, "query")


def _gallery(parser: argparse.ArgumentParser, data: str) -> None:
    parser.add_argument("archive", nargs="?", metavar="FILE", help="npz, npy or pt, or a folder of npy")
    group = parser.add_argument_group("files")
    group.add_argument("--data", default=data, metavar="NAME", help=f"the array of {data}; default: {data}")
    group.add_argument("--labels", default="labels", metavar="NAME", help="the array of labels; default: labels")
    group.add_argument("--ids", metavar="NAME", help="the array of ids; default: ids, where there is one")
    group.add_argument("--num-queries", type=int, metavar="N", help="the first N rows are the queries")
    _convention_options(parser)
    parser.add_argument(
        "--relevance", type=_number, default=GIVEN, metavar="RULE", help="a number, or any | exact | weighted"
    )
    parser.add_argument("--label-weights", nargs="+", type=float, default=GIVEN, metavar="W")
    parser.add_argument("--exclude-self", action="store_true", default=GIVEN, help="by id")
    if data == "codes":
        parser.add_argument("--packed", action="store_true", default=GIVEN, help="codes are bytes of 8 bits")
    else:
        parser.add_argument("--similarity", default=GIVEN, metavar="NAME", help="cosine | dot | euclidean")
    _output_options(parser, "query")


OPTIONS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "detection": ("boxes, masks, oriented boxes or keypoints against ground truth", _detection),
    "retrieval": ("a run against judgments", _retrieval),
    "hashing": ("binary codes with labels", lambda parser: _gallery(parser, "codes")),
    "embedding": ("real-valued vectors with labels", lambda parser: _gallery(parser, "embeddings")),
}


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = _Parser(
        prog="map-metrics",
        description="Mean average precision of files, under named conventions.",
        epilog="\n\n".join(EXAMPLES.values()).replace("examples:\n", "").replace("\n\n", "\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    shells = ("bash", "zsh", "tcsh")
    top.add_argument("--completion", choices=shells, help="print the script that completes the command in a shell")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, (text, add) in OPTIONS.items():
        command = commands.add_parser(
            name,
            help=text,
            description=f"Mean average precision of {text}.",
            epilog=EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add(command)
    return top


# --- running ----------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code: 0, or 2 for bad input, which one line on stderr explains."""
    arguments = parser().parse_args(argv)
    if arguments.version:
        from importlib.metadata import version

        print(version("torchmetrics-map"))
        return OK
    if arguments.command is None and arguments.completion is None:
        parser().print_help()
        return BAD_INPUT
    try:
        text = _run(vars(arguments)) if arguments.completion is None else _completion(arguments.completion)
    except (ValueError, OSError, ImportError) as error:
        print(f"map-metrics: error: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    return _print(text)


def _run(options: dict[str, Any]) -> str:
    """The text to print; what the metrics warn of goes to stderr."""
    from map_metrics.commands import run

    gc.freeze()  # the many objects of the imports: the collector would go through them again and again while files load
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            text = run(options, _show_step)
    finally:
        gc.unfreeze()
    _show_step("")
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"map-metrics: note: {message}", file=sys.stderr)
    return text


def _completion(shell: str) -> str:
    from map_metrics.completion import completion_script

    return completion_script(parser(), shell)


def _show_step(step: str) -> None:
    """What is being done, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)


def _one_line(error: BaseException) -> str:
    _show_step("")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = re.sub(r"Argument `(\w+)`", lambda match: f"--{match[1].replace('_', '-')}", str(error))
    return " ".join(text.split())


def _print(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK
