"""The pictures of the README, made again from the detection demo: ``make pictures``.

``curves.png`` is what TensorBoard shows at the last step, read from its file; ``report.png`` is the top of the page
that lies beside it, in a browser without a window. Needs Chromium.
"""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import Browser, installed  # noqa: E402

WIDTH = 1140  # six of the twelve cards in a row
END = "document.querySelectorAll('tbody tr')[4].getBoundingClientRect().bottom"  # of the fifth of the worst classes


def curves(logs: Path) -> Image.Image:
    """The figures of the last validation, one beside the other."""
    events = EventAccumulator(str(logs), {"images": 0}).Reload()
    last = [events.Images(key)[-1].encoded_image_string for key in ("val/pr_curve", "val/ap_per_class")]
    figures = [Image.open(io.BytesIO(content)).convert("RGB") for content in last]
    whole = Image.new("RGB", (sum(f.width for f in figures), max(f.height for f in figures)), "white")
    left = 0
    for figure in figures:
        whole.paste(figure, (left, 0))
        left += figure.width
    return whole


def report(page: Path, folder: Path) -> Image.Image:
    """The top of a page."""
    program = installed()
    if program is None:
        raise SystemExit("The picture of the report needs Chromium")
    browser = Browser(program, folder)
    try:
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page, WIDTH)
        height = round(browser.value(END))
        browser.screenshot(folder / "page.png")
    finally:
        browser.close()
    return Image.open(folder / "page.png").convert("RGB").crop((0, 0, WIDTH, height + 1))


def main() -> None:
    """Train the detector, and write both pictures."""
    with tempfile.TemporaryDirectory() as name:
        logs = Path(name)
        example = [sys.executable, str(ROOT / "examples" / "detection_digits.py"), "--devices", "2", "--logdir", name]
        subprocess.run(example, check=True)
        run = logs / "detection" / "version_0"
        pictures = {"curves": curves(run), "report": report(run / "reports" / "val" / "report.html", logs)}
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        path = folder / f"{name}.png"
        picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)  # small
        print(f"{path.relative_to(ROOT)}: {picture.width} x {picture.height}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
