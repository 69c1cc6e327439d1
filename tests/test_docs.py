"""Every python block of the README and of docs/ runs, and prints what it says; the site has a place for every name.

The blocks of one second-level section run in order and in one namespace; warnings are errors.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import zlib
from pathlib import Path

import pytest

import map_metrics
from map_metrics import functional, loggers, plots, presets, readers

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})[ ]*(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=fence)[ ]*$", re.M | re.S
)


def sections(text: str) -> dict[str, list[tuple[int, str]]]:
    """Title of each second-level section -> its python blocks, as (line, code)."""
    blocks = [
        match for match in FENCE.finditer(text) if match["language"].lower() in ("python", "py", "python3", "pycon")
    ]
    fenced = [(match.start(), match.end()) for match in FENCE.finditer(text)]
    titles = [
        (match.start(), match[1].strip())
        for match in re.finditer(r"^## +(.*)$", text, re.M)
        if not any(start < match.start() < end for start, end in fenced)
    ]
    found: dict[str, list[tuple[int, str]]] = {}
    for block in blocks:
        title = next((title for start, title in reversed(titles) if start < block.start()), "before the first section")
        found.setdefault(title, []).append((text.count("\n", 0, block.start("code")), block["code"]))
    return found


def run(code: str, line: int, namespace: dict, name: str) -> None:
    """A block. One with prompts is a doctest; in others a printed line must be what the comment beside it says."""
    if code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, namespace, name, name, line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        assert not runner.failures, "".join(report)
        namespace.update(test.globs)
        return
    comments, body = comments_of(code), ast.parse(code).body
    for call in [call for statement in body if not is_print(statement) for call in ast.walk(statement)]:
        nested = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        assert not (nested and call.end_lineno in comments), f"{name}:{line + call.end_lineno}: not compared in a loop"
    for statement in body:
        end = statement.end_lineno
        ast.increment_lineno(statement, line)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(ast.Module([statement], []), name, "exec"), namespace)
        printed = output.getvalue().strip()
        if is_print(statement) and end in comments and "\n" not in printed:
            assert follows(comments[end], printed), f"{name}:{line + end}: printed {printed!r}, said {comments[end]!r}"


def comments_of(code: str) -> dict[int, str]:
    """Line -> its comment."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def is_print(statement: ast.stmt) -> bool:
    """A call of print, alone in its line."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"


def follows(said: str, printed: str) -> bool:
    """The comment is what is printed; words may follow, behind a colon, semicolon or comma."""
    return said == printed or (said.startswith(printed) and said[len(printed)] in ":;,")


# --- the blocks -------------------------------------------------------------------------------------------------------

BLOCKS = {
    f"{page.relative_to(ROOT)}: {title}": (page, blocks)
    for page in PAGES
    for title, blocks in sections(page.read_text()).items()
}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_is_found(page):
    fences = re.findall(r"^ *(?:`{3,}|~{3,}) *(?:python|py|python3|pycon)\b", page.read_text(), re.M | re.I)
    assert len(fences) == sum(map(len, sections(page.read_text()).values()))


def test_the_pages_that_show_the_metrics_have_blocks():
    pages = {page.relative_to(ROOT).as_posix() for page, _ in BLOCKS.values()}
    names = ("index", "conventions", "exactness", "detection", "lightning", "cli", "troubleshooting")
    assert {"README.md", *(f"docs/{name}.md" for name in names)} <= pages


@pytest.mark.parametrize("title", BLOCKS)
def test_blocks(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, blocks = BLOCKS[title]
    namespace = {"__name__": "page"}
    for line, code in blocks:
        run(code, line, namespace, page.name)


EXAMPLE = """
```python
before = 1
```
## One
text
~~~~python
x = 1
## not a section
~~~~
```bash
false
```
### Part of one
```py
>>> x + 1
2
```
## Two
```python
assert "x" not in globals()
print(
    1 / 4,
)  # 0.25: a quarter
print(1)  # 1
print("one\\ntwo")  # of two lines anything may be said
```
"""


def test_blocks_are_found_and_run_in_their_sections():
    found = sections(EXAMPLE)
    assert {title: len(blocks) for title, blocks in found.items()} == {
        "before the first section": 1,
        "One": 2,
        "Two": 1,
    }
    for blocks in found.values():
        namespace: dict = {}
        for line, code in blocks:
            run(code, line, namespace, "example")


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (">>> 1 + 1\n3\n", AssertionError, "Expected"),
        ("unknown", NameError, "unknown"),
        ("print(1)  # 2", AssertionError, "example:7: printed '1', said '2'"),
        ("print(1)  # 1.5", AssertionError, "printed '1'"),
        ("print(0.1)  # 0.12", AssertionError, "printed"),
        ("for i in (1, 2):\n    print(i)  # 3", AssertionError, "example:8: not compared"),
    ],
)
def test_a_block_that_says_something_else_fails(code, error, message):
    with pytest.raises(error, match=message):
        run(code, 6, {}, "example")


# --- the site ---------------------------------------------------------------------------------------------------------


def build(root: Path, folder: Path) -> subprocess.CompletedProcess:
    """Build as `make docs` does: a warning (a broken link, a name without a page) is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("broken", ["[link](nowhere.md)", "[link](conventions.md#nowhere)", "::: map_metrics.Nowhere"])
def test_a_broken_page_fails(tmp_path, broken):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "src", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    with (tmp_path / "docs/index.md").open("a") as page:
        page.write(f"\n{broken}\n")
    assert "owhere" in (done := build(tmp_path, tmp_path / "site")).stderr
    assert done.returncode == 1


def test_every_public_name_stands_on_an_api_page(site):
    header, _, body = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert b"Sphinx inventory version 2" in header
    place = {line.split()[0]: line.split()[3] for line in zlib.decompress(body).decode().splitlines()}
    names = [f"map_metrics.functional.{name}" for name in functional.__all__]
    names += [f"map_metrics.{name}" for name in map_metrics.__all__ if name not in functional.__all__]
    names += [f"map_metrics.presets.{name}" for name in vars(presets) if name.isupper()]
    names += [f"map_metrics.readers.{name}" for name in readers.__all__]
    names += ["map_metrics.callbacks.MAPCallback", "map_metrics.results.RetrievalResult"]
    names += ["map_metrics.report.to_html", "map_metrics.report_callback.MAPReport"]
    names += [f"map_metrics.plots.{name}" for name in vars(plots) if name.startswith("plot_") or name == "curves"]
    names += [f"map_metrics.loggers.{name}" for name in vars(loggers) if name.startswith("log_") or name == "render"]
    assert len(names) > 24
    assert not [name for name in names if not place.get(name, "").startswith("api/")]


def test_docstrings_leave_no_markup(site):
    """Roles of Sphinx become links or code, and examples are code, not quotations."""
    pages = [page.read_text() for page in site.glob("api/*.html")]
    assert len(pages) == 11
    for text in pages:
        assert not re.search(r":(class|func|meth|attr|data|mod):", text)
        assert "``" not in text
        assert "<blockquote>" not in text


def test_pages_load_nothing_from_elsewhere(site):
    loads = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    assert not [page for page in pages if loads.search(page.read_text())]
    assert not [
        sheet
        for sheet in site.rglob("*.css")
        if re.search(r"(?:@import|url\()[\"' ]*(?:https?:)?//", sheet.read_text())
    ]
