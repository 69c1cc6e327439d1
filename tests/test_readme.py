"""Every python block of the README runs, those of one section in order and in one namespace; warnings are errors."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
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


SECTIONS = sections(README.read_text()) if README.exists() else {}


def run(code: str, line: int, namespace: dict) -> None:
    """A block; one with prompts is a doctest, and its output is compared."""
    if code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, namespace, README.name, README.name, line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        assert not runner.failures, "".join(report)
        namespace.update(test.globs)
    else:
        exec(compile("\n" * line + code, README.name, "exec"), namespace)


def test_the_readme_has_python_blocks():
    assert README.exists()
    assert sum(map(len, SECTIONS.values())) >= 1
    fences = re.findall(r"^ *(?:`{3,}|~{3,}) *(?:python|py|python3|pycon)\b", README.read_text(), re.M | re.I)
    assert len(fences) == sum(map(len, SECTIONS.values())), "a block was not found"


@pytest.mark.parametrize("title", SECTIONS)
def test_readme(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "readme"}
    for line, code in SECTIONS[title]:
        run(code, line, namespace)


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
            run(code, line, namespace)
    with pytest.raises(AssertionError, match="Expected"):
        run(">>> 1 + 1\n3\n", 0, {})
    with pytest.raises(NameError):
        run("unknown", 0, {})
