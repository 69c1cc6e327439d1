"""The stream of a JSON file against json.loads, whatever the window."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from map_metrics.readers import ReadError, json_stream
from map_metrics.readers.json_stream import json_lists

ENTRIES = [
    {"image_id": 1, "bbox": [1, 2.5, -3e-7, 4], "score": 0.125},
    {"segmentation": {"size": [4, 5], "counts": 'a}, {"[b\\'}, "text": "é\u2028ü\n\ttab"},
    [],
    {},
    "plain",
    -12,
    None,
    [[{"deep": [True, False]}], float("inf")],
    0.0,
    1.5e-12,
    1e300,
]
DOCUMENTS = {
    "a list": ENTRIES,
    "an object": {"info": {"list": [1, 2]}, "images": ENTRIES, "year": 2014, "annotations": ENTRIES[::-1], "none": []},
    "an empty list": [],
    "an empty object": {},
}


@pytest.fixture(params=[1, 60, 1 << 18], autouse=True)
def stretch(request, monkeypatch) -> None:
    """Characters that are decoded as one list where they look like whole entries."""
    monkeypatch.setattr(json_stream, "STRETCH", request.param)


def read(path) -> dict:
    found: dict = {}
    for batch in json_lists(path):
        assert batch.first == len(found.setdefault(batch.key, []))
        found[batch.key] += batch.values
    return found


def expected(document) -> dict:
    if isinstance(document, list):
        return {None: document}
    return {key: value for key, value in document.items() if isinstance(value, list)}


@pytest.mark.parametrize("indent", [None, 0, 3])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("window", [1, 2, 7, 40, 1 << 20])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_stream_is_the_document(tmp_path, monkeypatch, name, window, ascii_only, indent):
    monkeypatch.setattr(json_stream, "WINDOW", window)
    monkeypatch.setattr(json_stream, "BATCH", 3)
    (tmp_path / "a.json").write_text(json.dumps(DOCUMENTS[name], indent=indent, ensure_ascii=ascii_only), "utf-8")
    assert read(tmp_path / "a.json") == expected(DOCUMENTS[name])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
            lambda children: (
                st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=6,
    ),
    st.integers(1, 30),
)
def test_any_list(tmp_path_factory, entries, window):
    path = tmp_path_factory.mktemp("any") / "a.json"
    path.write_text(json.dumps(entries), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "WINDOW", window)
        assert read(path) == {None: entries}


@pytest.mark.parametrize("window", [1, 16, 1 << 20])
@pytest.mark.parametrize("name", ["a list", "an object"])
def test_every_beginning_of_a_file_is_an_error(tmp_path, monkeypatch, name, window):
    monkeypatch.setattr(json_stream, "WINDOW", window)
    text, path = json.dumps(DOCUMENTS[name], indent=1), tmp_path / "a.json"
    for end in range(len(text)):
        path.write_text(text[:end], "utf-8")
        with pytest.raises(ReadError, match=rf"a\.json:{text[:end].count(chr(10)) + 1}: (is|ends|expected)") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1},\n {"a" 1}]', "a.json:2: is not JSON"),
        ('[{"a": 1}\n {"a": 1}]', "a.json:2: expected ',' or ']', got '{'"),
        ('[{"a": 1}]\n\n x', "a.json:3: must end behind its JSON"),
        ("[1, 2,\n\n]", "a.json:3: is not JSON: expected a value"),
        ('{"images": [1],\n 2: 3}', "a.json:2: expected a key"),
        ('{"images" [1]}', "a.json:1: expected ':', got '['"),
        ("3", "a.json:1: must hold a JSON list or object"),
        ("", "a.json:1: is empty, expected JSON"),
        (" \r\n ", "a.json:2: is empty, expected JSON"),
        ("[" * 100_000, "a.json:1: is nested too deep"),
        ('[{"id": 1},\n{"id": ' + "1" * 5000 + "}]", "a.json:2: holds a number of too many digits"),
        ('[{"a": "b\nc"}]', "a.json:1: is not JSON: Invalid control character"),
        ('[{"a": "b\nc"}', "a.json:1: "),
    ],
)
def test_what_is_no_json(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text, "utf-8")
    with pytest.raises(ReadError) as caught:
        read(tmp_path / "a.json")
    assert message in str(caught.value)


def test_a_broken_entry_is_found_without_reading_on(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "WINDOW", 64)
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, {"b" 2}, ' + '{"c": "' + "x" * 100_000 + '"}]', "utf-8")
    with path.open() as file:
        scanner = json_stream._Scanner(path, file)
        with pytest.raises(ReadError, match="is not JSON: Expecting ':' delimiter"):
            list(scanner.entries(None))
        assert len(scanner.buffer) < 1000


def test_entries_know_their_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "BATCH", 2)
    path = tmp_path / "a.json"
    path.write_bytes(b'{"images": [\r\n1, 2,\r\n\r\n3\r\n], "b": [4]}')
    batches = list(json_lists(path))
    assert [(batch.values, batch.lines) for batch in batches] == [([1, 2], [2, 2]), ([3], [4]), ([4], [5])]
    assert str(batches[1].error(0, "wrong")) == f"{path}:4: images[2]: wrong"


@pytest.mark.parametrize("separator", [",", ",\n", "\n,", "\n\n,\r\n "])
@pytest.mark.parametrize("indent", [None, 1])
def test_entries_of_a_stretch_know_their_lines(tmp_path, monkeypatch, separator, indent):
    monkeypatch.setattr(json_stream, "STRETCH", 200)
    entries = [{"a": {"b": "},{" if i == 30 else i}, "c": "x" * (i % 7)} for i in range(50)]
    texts = [json.dumps(entry, indent=indent) for entry in entries]
    text, lines = "[\n", []
    for entry in texts:
        lines.append(text.count("\n") + 1)
        text += entry + separator
    (tmp_path / "a.json").write_bytes(f"{text} 1]".encode())
    batches = list(json_lists(tmp_path / "a.json"))
    if separator.startswith(","):
        assert 3 < len(batches) < 20  # one by one they are one batch
    assert [line for batch in batches for line in batch.lines][:-1] == lines
    assert [value for batch in batches for value in batch.values] == [*entries, 1]


def test_gzip_and_byte_order_marks(tmp_path):
    for name, content in (("a.json", b"\xef\xbb\xbf[1]"), ("b.json", gzip.compress(b"[1]"))):
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name) == {None: [1]}


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_that_are_not_utf8(tmp_path, packed):
    content = b'["a",\r\n"b",\n"\xff"]'
    (tmp_path / "a.json").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ReadError, match=r"a\.json:3: must be UTF-8"):
        read(tmp_path / "a.json")


def test_a_gzip_file_that_is_cut_off(tmp_path):
    (tmp_path / "a.json").write_bytes(gzip.compress(json.dumps(list(range(5000))).encode())[:-30])
    with pytest.raises(ReadError, match=r"a\.json: must be a whole gzip file"):
        read(tmp_path / "a.json")
