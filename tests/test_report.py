"""The page of a result: its structure, its numbers, hostile names, and how it behaves in a browser."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser as chromium
import numpy as np
import pytest
import torch
from PIL import Image

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP, report_page
from map_metrics.report import to_html

NAMES = [
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 2">',
    "</script><script>window.hacked = 3</script><!--",
    "' onmouseover='window.hacked = 4",
    "&lt;b&gt; & &amp; \u2028 \u00e9 \u4e2d\u6587 \U0001f600",
    "class10",
    "class9",
    "x" * 300,
]


# --- results ----------------------------------------------------------------------------------------------------------


def boxes(n: int, rng: torch.Generator) -> torch.Tensor:
    corner = torch.rand(n, 2, generator=rng) * 100
    return torch.cat([corner, corner + 5 + torch.rand(n, 2, generator=rng) * 80], 1)


def detection(classes: int = 80, images: int = 40, names: bool = True, **kwargs: Any) -> Any:
    """Boxes that are found with some error; of the last five classes there is no ground truth."""
    rng = torch.Generator().manual_seed(0)
    given = [NAMES[i] if i < len(NAMES) else f"class {i}" for i in range(classes)] if names else None
    metric = DetectionMAP(class_names=given, **kwargs)
    for _ in range(images):
        truth, labels = boxes(12, rng), torch.randint(0, classes - 5, (12,), generator=rng)
        found = truth + torch.rand(12, 4, generator=rng) * 4
        guess = torch.where(torch.rand(12, generator=rng) < 0.8, labels, (labels + 5) % classes)
        scores = torch.rand(12, generator=rng)
        metric.update([{"boxes": found, "scores": scores, "labels": guess}], [{"boxes": truth, "labels": labels}])
    return metric.result()


def retrieval(queries: int = 150, items: int = 30, named: bool = False, **kwargs: Any) -> Any:
    """Every seventh query has no relevant item; ids, where there are any, are larger than a double can tell apart."""
    rng = torch.Generator().manual_seed(1)
    relevant = torch.rand(queries, items, generator=rng) < 0.15
    relevant[::7] = False
    metric = RetrievalMAP(**kwargs)
    ids = 2**62 + torch.randperm(queries, generator=rng) if named else None
    metric.update(torch.rand(queries, items, generator=rng) + relevant * 0.3, relevant, ids=ids)
    return metric.result()


def codes(metric: Any, **kwargs: Any) -> Any:
    rng = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 4, (90,), generator=rng)
    values = torch.randn(4, 16, generator=rng)[labels] + torch.randn(90, 16, generator=rng)
    values = values > 0 if metric is HashingMAPAtK else values
    made = metric(**kwargs)
    made.update(values, labels, query=torch.arange(90) < 30, ids=torch.arange(90) - 10)
    return made.result()


def one_query() -> Any:
    metric = RetrievalMAP()
    metric.update(torch.tensor([[2.0, 1.0]]), torch.tensor([[0, 1]]))
    return metric.result()


RESULTS: dict[str, Callable[[], Any]] = {
    "retrieval": lambda: retrieval(top_k=[5, 10], empty_target_action="skip"),
    "ids": lambda: retrieval(named=True),
    "hashing": lambda: codes(HashingMAPAtK, top_k=20),
    "embedding": lambda: codes(EmbeddingMAPAtK, top_k="R"),
    "weighted": lambda: codes(HashingMAPAtK, relevance="weighted", label_weights=[3.0, 1.0, 0.5, 2.0]),
    "one query": one_query,
    "detection": lambda: detection(),
    "unnamed classes": lambda: detection(12, names=False, class_groups={0: "<i>rare", 1: "common"}),
    "voc": lambda: detection(12, protocol="voc2012"),
    "micro": lambda: detection(12, average="micro"),
    "one threshold": lambda: detection(12, iou_thresholds=[0.6]),
    "no image": lambda: DetectionMAP().result(),
}
DETECTION = ("detection", "unnamed classes", "voc", "micro", "one threshold", "no image")


class Document(HTMLParser):
    """A page taken apart; an element that is not closed in its place is an error."""

    VOID = ("meta", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, Any]]] = []
        self.elements: list[tuple[str, dict[str, Any], str]] = []  # name, attributes, text inside
        self._texts: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        if name in self.VOID:
            self.elements.append((name, dict(attrs), ""))
        else:
            self.open.append((name, dict(attrs)))
            self._texts.append([])

    def handle_endtag(self, name: str) -> None:
        opened, attributes = self.open.pop()
        assert opened == name
        self.elements.append((name, attributes, "".join(self._texts.pop())))

    def handle_data(self, text: str) -> None:
        for texts in self._texts:
            texts.append(text)

    def all(self, name: str) -> list[tuple[dict[str, Any], str]]:
        return [(attributes, text) for found, attributes, text in self.elements if found == name]

    @property
    def data(self) -> dict[str, Any]:
        """The rows of the table."""
        (found,) = [text for attributes, text in self.all("script") if attributes.get("id") == "data"]
        return json.loads(found)


class Made:
    """A result and its page."""

    def __init__(self, result: Any, path: Path, title: str | None = None) -> None:
        self.result, self.path = result, path
        result.to_html(path, title=title)
        self.text = path.read_text(encoding="utf-8")
        self.document = Document(self.text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Each of the results above, by name, with its page."""
    folder, kept = tmp_path_factory.mktemp("pages"), {}

    def make(kind: str) -> Made:
        if kind not in kept:
            kept[kind] = Made(RESULTS[kind](), folder / f"{kind}.html")
        return kept[kind]

    return make


# --- the page as text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RESULTS)
def test_structure(made, kind):
    page = made(kind)
    assert page.text.startswith("<!doctype html>\n<html lang=")
    elements = page.document.elements
    ids = [attributes["id"] for _, attributes, _ in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in elements:  # what is referred to is there
        for reference in ("for", "aria-describedby"):
            assert attributes.get(reference, ids[0]) in ids
    assert len(page.document.all("h1")) == page.text.partition("</head>")[0].count("<title>") == 1
    for attributes, _ in page.document.all("svg"):
        assert attributes.get("aria-hidden") or (attributes["role"] == "img" and attributes["aria-label"])


@pytest.mark.parametrize("kind", RESULTS)
def test_nothing_is_loaded_and_only_the_pages_own_script_runs(made, kind):
    page = made(kind)
    for _, attributes, _ in page.document.elements:
        assert not {"src", "srcset", "action", "style", "xlink:href"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "data:,") == "data:,"
    ((_, style),), scripts = page.document.all("style"), page.document.all("script")
    assert not re.search(r"@import|url\(", style)
    assert len(scripts) == 2
    (policy,) = [a["content"] for a, _ in page.document.all("meta") if "http-equiv" in a]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, text in (("style-src", style), ("script-src", scripts[1][1])):
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def numbers(document: Document) -> dict[str, float]:
    """The headline numbers in full."""
    keys = [text for _, text in document.all("dt")]
    values = [a["value"] for a, text in document.all("data")][: len(keys)]
    return {key: float(value) if value else -1.0 for key, value in zip(keys, values, strict=True)}


@pytest.mark.parametrize("kind", RESULTS)
def test_headline_numbers_are_those_of_the_result(made, kind):
    page = made(kind)
    told, shown = page.result.to_dict(), numbers(page.document)
    value = told["value"] if isinstance(told["value"], dict) else {"map": told["value"]}
    if kind not in DETECTION:
        value = value | {"chance": float(page.result.chance)}
    assert shown == value
    for attributes, text in page.document.all("data"):
        number = float(attributes["value"] or "nan")
        assert text == "\u2013" if math.isnan(number) else abs(float(text) - number) <= 0.005
    facts = {text for _, text in page.document.all("td")}
    for count in (count for key, count in told.items() if key.startswith("num_")):
        assert str(count) in facts


@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind not in DETECTION])
def test_rows_of_queries(made, kind):
    page = made(kind)
    told, data = page.result.to_dict()["queries"], page.document.data
    ks = [column["key"].partition("@")[2] for column in data["columns"] if column["key"].startswith("ap")]
    several = isinstance(page.result.conventions.top_k, tuple)
    rows = [dict(zip([c["key"] for c in data["columns"]], row, strict=True)) for row in data["rows"]]
    of = {row["query"].replace("#", ""): row for row in rows}
    assert len(of) == len(told)
    for query in told:
        row = of[str(query["query"])]
        assert row["query"].startswith("#") != query["named"]
        for column in ("num_relevant", "num_items"):
            assert row[column] == query[column]
        for i, k in enumerate(ks):
            key = f"@{k}" if k else ""
            for column, ours in (("ap", f"ap{key}"), ("num_hits", f"num_hits{key}")):
                assert row[ours] == (query[column][i] if several else query[column])
        assert (row["first_hit"] is None) == (query["num_relevant"] == 0)
    lowest_first([row[data["by"]] for row in data["rows"]])
    worst = [str(row["query"]) for row in page.result.worst(10)]
    assert [row["query"].replace("#", "") for row in rows[: len(worst)]] == worst
    listed = [text.replace("#", "") for attributes, text in page.document.all("td") if attributes.get("class") == "id"]
    assert listed == worst


@pytest.mark.parametrize("kind", DETECTION)
def test_rows_of_classes(made, kind):
    page = made(kind)
    told, data = page.result.to_dict(), page.document.data
    rows = [dict(zip([c["key"] for c in data["columns"]], row, strict=True)) for row in data["rows"]]
    of = {row["label"]: row for row in rows}
    assert len(of) == len(told["classes"])
    thresholds = told["protocol"]["iou_thresholds"]
    for c, given in enumerate(told["classes"]):
        row = of[str(given["label"])]
        assert row["name"] == given["name"]
        for key in ("ap", "ar", "ground_truths", "detections"):
            assert (-1 if row[key] is None else row[key]) == given[key]
        for t, key in ((0.5, "ap_50"), (0.75, "ap_75")):
            assert (key in row) == (t in thresholds and len(thresholds) > 1)
            if key in row and kind != "micro":
                mean = page.result.precision[thresholds.index(t), :, c, 0, -1].mean()
                assert (-1 if row[key] is None else row[key]) == pytest.approx(float(mean), abs=1e-12)
    lowest_first([row[data["by"]] for row in data["rows"]])
    listed = [text for attributes, text in page.document.all("td") if attributes.get("class") == "text"]
    lowest = sorted((row for row in told["classes"] if row["ap"] != -1), key=lambda row: row["ap"])
    assert listed == [row["name"] for row in lowest[:10]]


@pytest.mark.parametrize("kind", ["detection", "voc"])
def test_the_worst_images(made, kind):
    page = made(kind)
    worst = sorted((row for row in page.result.per_image() if row["ap"] > -1), key=lambda row: row["ap"])[:10]
    cells = [text for attributes, text in page.document.all("td") if attributes.get("class") == "id"]
    assert cells[-10:] == [f"#{row['image']}" for row in worst]  # places: no image has an id
    (caption,) = [text for _, text in page.document.all("caption") if "images" in text]
    assert caption == (
        "The images of the lowest AP, the lowest first. Found, missed and false are counted at an IoU of 0.50. "
        "# stands before the place of an image that has no id."
    )


def test_images_stand_under_their_ids(tmp_path):
    metric, box = DetectionMAP(), torch.tensor([[0.0, 0, 10, 10]])
    labels = torch.tensor([3])
    for image, size in ((2**62 + 1, 0.8), (5, 0.9)):  # which no double tells from 2^62
        found = {"boxes": box * size, "scores": torch.tensor([0.5]), "labels": labels}
        metric.update([found], [{"boxes": box, "labels": labels, "image_id": image}])
    path = tmp_path / "page.html"
    to_html(metric.result(), path)
    document = Document(path.read_text(encoding="utf-8"))
    rows = [text for attributes, text in document.all("td") if attributes.get("class") == "id"]
    assert rows == ["3", str(2**62 + 1), "5"]
    # overlaps of 0.64 and 0.81: at 0.5, 0.55, 0.6, and up to 0.8
    assert [text for _, text in document.all("data") if text in ("0.3000", "0.7000")] == ["0.3000", "0.7000"]


def lowest_first(values: list[float | None]) -> None:
    defined = [value for value in values if value is not None]
    assert values == sorted(defined) + [None] * (len(values) - len(defined))


def paths(document: Document) -> list[list[tuple[float, float]]]:
    """The lines of the charts, from places on the page back to values: 52 to 386 across, 216 to 12 upwards."""
    lines = [a["d"] for a, _ in document.all("path") if a["class"].startswith("line ") and "H" not in a["d"]]
    points = [[tuple(map(float, p.split())) for p in line.removeprefix("M").split("L")] for line in lines]
    return [[((x - 52) / 334, (216 - y) / 204) for x, y in line] for line in points]


def test_curves_of_detection(made):
    page = made("detection")
    table = page.result.precision[..., 0, -1].numpy()
    table = table[:, :, page.result.num_ground_truths.numpy() > 0]
    expected = [table[0].mean(1), table[5].mean(1), table.mean((0, 2))]
    found = paths(page.document)
    assert len(found) == 3
    for line, values in zip(found, expected, strict=True):
        np.testing.assert_allclose([x for x, _ in line], np.linspace(0, 1, 101), atol=1e-4)
        np.testing.assert_allclose([y for _, y in line], values, atol=1e-4)
    key = [text for _, text in page.document.all("li")]
    assert key == ["IoU 0.50", "IoU 0.75", "mean over IoU 0.50 to 0.95"]
    assert [text for _, text in made("one threshold").document.all("li")] == ["mean over IoU 0.60 to 0.60"]
    assert not paths(made("voc").document)  # which keeps no points of a curve


def test_curves_of_hashing(made):
    page = made("hashing")
    curve, precision, recall = paths(page.document)
    np.testing.assert_allclose([y for _, y in curve], page.result.curve(101)[1], atol=1e-4)
    for line, values in zip((precision, recall), page.result.radius_curve(), strict=True):
        np.testing.assert_allclose([x * 16 for x, _ in line], range(17), atol=2e-3)
        np.testing.assert_allclose([y for _, y in line], values, atol=1e-4)
    marks = [(float(a["cx"]), float(a["cy"])) for a, _ in page.document.all("circle")]
    assert len(marks) == 11
    np.testing.assert_allclose([(216 - y) / 204 for _, y in marks], page.result.curve(11)[1], atol=1e-4)


def test_bars_count_every_query(made):
    page = made("weighted")  # whose APs may exceed 1
    ap = page.result.ap.tolist()
    bars = [text.partition(": ") for attributes, text in page.document.all("rect")]
    assert sum(int(count) for *_, count in bars) == len(ap)
    assert float(bars[-1][0].split(" to ")[1]) == pytest.approx(max(1, *ap), abs=0.005)


# --- names and numbers that try to get out ----------------------------------------------------------------------------


def test_names_stay_text(made):
    page = made("detection")
    assert [row[0] for row in page.document.data["rows"] if row[1] in map(str, range(len(NAMES)))]
    assert {row[0] for row in page.document.data["rows"]} >= set(NAMES)
    tags = {name for name, _, _ in page.document.elements}
    assert not tags & {"img", "b", "i", "iframe"}
    raw = page.text.split('id="data"')[1].split("</script>")[0]
    assert "<" not in raw  # neither </script> nor <!-- can stand in the data


def test_text_is_escaped_where_it_enters_an_element():
    inner = report_page.tag("i", "<&")
    assert report_page.tag("b", inner, "<", class_='"<', id=None) == '<b class="&quot;&lt;"><i>&lt;&amp;</i>&lt;</b>'
    assert report_page.tag("link", href="a'b") == '<link href="a&#x27;b">'


def test_titles_functions_and_groups_stay_text(tmp_path, made):
    def mean(ap):
        return ap.mean()

    mean.__name__ = "<img src=x>"
    page = Made(retrieval(aggregation=mean), tmp_path / "page.html", title=NAMES[2])
    assert page.document.all("h1")[0][1] == page.document.all("title")[0][1] == NAMES[2]
    assert "<img src=x> over the queries" in [text for _, text in page.document.all("dd")]
    assert len(page.document.all("script")) == 2
    assert "map_<i>rare" in [text for _, text in made("unnamed classes").document.all("dt")]


def test_a_half_of_a_surrogate_pair_is_written(tmp_path):
    metric = DetectionMAP(class_names=["a\ud800\0b"])
    box = torch.tensor([[0.0, 0, 9, 9]])
    one = {"boxes": box, "labels": torch.tensor([0])}
    metric.update([{**one, "scores": torch.tensor([0.5])}], [one])
    page = Made(metric.result(), tmp_path / "page.html")
    assert page.document.data["rows"][0][0] == "a\ud800\0b"


def test_json_has_no_infinity(tmp_path):
    assert report_page.plain({1: [math.inf, (math.nan, 2.0)], "b": "NaN"}) == {"1": [None, [None, 2.0]], "b": "NaN"}
    page = Made(retrieval(aggregation=lambda ap: torch.tensor(math.nan)), tmp_path / "page.html")
    assert math.isnan(page.result.to_dict()["value"])
    assert next(text for _, text in page.document.all("data")) == "\u2013"


# --- notes, sizes, files ----------------------------------------------------------------------------------------------


def test_notes_stand_on_the_page(tmp_path):
    metric = RetrievalMAP()
    scores = torch.rand(40, 50, generator=torch.Generator().manual_seed(0))
    metric.update(scores, scores < 0.2, ids=torch.arange(40) // 2)
    with pytest.warns(UserWarning, match="repeat an id|below"):
        result = metric.result()
    notes = result.notes()
    assert set(notes) == {"conflicts", "chance"}
    page = Made(result, tmp_path / "page.html")
    shown = [text for attributes, text in page.document.all("p") if attributes.get("class") == "note"]
    assert shown == [f"Note: {note}" for note in notes.values()]


def test_a_hundred_thousand_queries(tmp_path):
    rng = torch.Generator().manual_seed(0)
    relevant = torch.rand(100_000, 6, generator=rng) < 0.4
    metric = RetrievalMAP()
    metric.update(torch.rand(100_000, 6, generator=rng), relevant)
    page = Made(metric.result(), tmp_path / "page.html")
    assert page.path.stat().st_size < 2_000_000
    rows = page.document.data["rows"]
    assert [row[1] for row in rows] == page.result.ap.sort().values[:10_000].tolist()
    captions = [text for _, text in page.document.all("caption")]
    said = "The 10,000 of the lowest AP of 100,000 queries: the others are not on this page."
    assert any(said in caption for caption in captions)
    assert str(100_000) in [text for _, text in page.document.all("td")]


def test_many_cut_offs(tmp_path):
    page = Made(retrieval(3000, 60, top_k=range(1, 61)), tmp_path / "page.html")
    assert page.path.stat().st_size < 5_000_000
    rows, columns = page.document.data["rows"], page.document.data["columns"]
    assert len(columns) == 124
    assert len(rows) == 100_000 // 124
    assert max(row[1] for row in rows) <= page.result.ap[:, 0].sort().values[len(rows)]


def test_no_query_at_all(tmp_path):
    with pytest.warns(UserWarning, match="No query to average over"):
        page = Made(RetrievalMAP().result(), tmp_path / "page.html")
    assert page.document.data["rows"] == []
    assert numbers(page.document) == {"map": 0.0}
    assert "No queries with an AP." in [text for _, text in page.document.all("p")]


def test_the_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("before")
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        assert path.read_text() == "before"
        assert Path(source).parent == tmp_path  # on the same disk
        assert Path(source).read_text(encoding="utf-8").endswith("</html>\n")
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    one_query().to_html(str(path))
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["page.html"]
    if os.name == "posix":  # for all that the user lets read new files
        (tmp_path / "other").write_text("")
        assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("before")

    def fail(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        one_query().to_html(path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize(
    ("result", "arguments", "message"),
    [
        ({"map": 1.0}, {}, "`result` must be a RetrievalResult or a DetectionResult, got dict"),
        (one_query(), {"title": 3}, "`title` must be None or a string, got 3"),
        (retrieval(empty_target_action="error"), {}, "queries have no relevant item"),
    ],
)
def test_arguments_are_checked(tmp_path, result, arguments, message):
    with pytest.raises(ValueError, match=message):
        to_html(result, tmp_path / "page.html", **arguments)
    assert not os.listdir(tmp_path)


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        one_query().to_html(tmp_path / "nowhere" / "page.html")


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    program = chromium.installed()
    if program is None and os.environ.get("MAP_METRICS_BROWSER") == "required":
        pytest.fail("No Chromium: what the page does in a browser must be tested here")
    if program is None:
        pytest.skip("no Chromium is installed")
    window = chromium.Browser(program, tmp_path_factory.mktemp("chromium"))
    yield window
    window.close()


def cells(tab: chromium.Browser, column: int) -> list[str]:
    """What stands in a column of the table that sorts."""
    return tab.value(f"[...document.querySelectorAll('#rows tbody tr')].map(tr => tr.cells[{column}].textContent)")


def directions(tab: chromium.Browser) -> list[str | None]:
    return tab.value("[...document.querySelectorAll('#rows th')].map(th => th.getAttribute('aria-sort'))")


HEAD = "document.querySelectorAll('#rows th button')[{}]"


def quiet(tab: chromium.Browser, page: Made) -> bool:
    """No word on the console, and nothing asked for but the page."""
    tab.value("new Promise(done => setTimeout(done, 50))")
    return tab.errors == [] and {url for url in tab.requests if url != "data:,"} == {page.path.as_uri()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", RESULTS)
def test_every_page_is_readable(tab, made, kind, width, scheme):
    page = made(kind)
    tab.open(page.path, width, scheme=scheme)
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")
    assert len(cells(tab, 0)) == min(len(page.document.data["rows"]), 100)
    assert quiet(tab, page)
    for place in ("h1", "dd", ".what", "td", "th", "figcaption", "#filter"):
        if tab.value(f"document.querySelector('{place}') !== null"):
            assert contrast(tab, place) >= 4.5, place
    assert tab.value("Math.min(...[...document.querySelectorAll('p, td, dd, th')].map(e => "
                     "parseFloat(getComputedStyle(e).fontSize)))") >= 12  # fmt: skip
    text = tab.value("Math.min(...[...document.querySelectorAll('svg text')].map("
                     "e => 12.5 * e.ownerSVGElement.getScreenCTM().a), 99)")  # fmt: skip
    assert text >= 10.5


def contrast(tab: chromium.Browser, place: str) -> float:
    """Between the colour of a text and what is behind it, as WCAG 2 defines it."""
    script = f"""(() => {{
      const e = document.querySelector("{place}");
      let behind = e;
      while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentNode;
      return [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor];
    }})()"""
    luminance = []
    for colour in tab.value(script):
        rgb = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        luminance.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminance) + 0.05) / (min(luminance) + 0.05)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_scheme_is_seen(tab, made, tmp_path, scheme, dark):
    tab.open(made("hashing").path, 400, scheme=scheme)
    tab.screenshot(tmp_path / "shot.png")
    brightness = np.asarray(Image.open(io.BytesIO((tmp_path / "shot.png").read_bytes())).convert("L"))
    assert brightness.shape[1] == 400
    assert (np.median(brightness) < 60) if dark else (np.median(brightness) > 230)
    assert brightness.std() > 15  # and there is something to see


@pytest.mark.parametrize("kind", ["detection", "retrieval", "ids", "hashing"])
def test_a_click_sorts(tab, made, kind):
    page = made(kind)
    tab.open(page.path)
    data = page.document.data
    assert cells(tab, 0) == [row[0] for row in data["rows"]][:100]
    tab.value("document.getElementById('more').click()")
    assert directions(tab)[data["by"]] == "ascending"
    tab.click(HEAD.format(data["by"]))
    assert directions(tab)[data["by"]] == "descending"
    for i, column in enumerate(data["columns"]):
        if column["kind"] == "text":
            continue
        defined = sorted([row[i] for row in data["rows"] if row[i] is not None], key=KEYS[column["kind"]])
        missing = ["\u2013"] * (len(data["rows"]) - len(defined))
        for direction in ("ascending", "descending"):
            tab.click(HEAD.format(i))
            expected = defined if direction == "ascending" else defined[::-1]
            assert cells(tab, i) == [shown(value, column["kind"]) for value in expected] + missing
            assert directions(tab) == [direction if j == i else None for j in range(len(data["columns"]))]
    assert quiet(tab, page)


KEYS = {"id": lambda text: int(text.replace("#", "")), "score": float, "count": float}


def shown(value: Any, kind: str) -> str:
    """Rounded half up, without floating point."""
    if kind == "id":
        return value
    digits = 4 if kind == "score" else 2 * (value != int(value))
    whole = str(math.floor(Fraction(value) * 10**digits + Fraction(1, 2))).rjust(digits + 1, "0")
    return f"{whole[:-digits]}.{whole[-digits:]}" if digits else whole


def test_numbers_are_rounded_alike_in_the_page_and_by_its_script(tab, made):
    assert [report_page.shown(x, "score") for x in (1 / 32, 3 / 32, 0.5, 1e-9)] == [
        "0.0313",
        "0.0938",
        "0.5000",
        "0.0000",
    ]
    assert [report_page.shown(x, "count") for x in (3, 4.0, 0.125, 2.375)] == ["3", "4", "0.13", "2.38"]
    for kind in ("hashing", "retrieval"):
        tab.open(made(kind).path)
        worst = tab.value("[...document.querySelectorAll('table:not(#rows) td.count')].map(td => td.textContent)")
        rows = tab.value("[...document.querySelectorAll('#rows td.count')].map(td => td.textContent)")
        assert worst == rows[: len(worst)] != []


def test_names_sort_by_the_numbers_in_them(tab, made):
    tab.open(made("detection").path)
    tab.click(HEAD.format(0))
    names = [name for name in cells(tab, 0) if name.startswith("class")]
    assert len(names) > 60
    spaced = [int(name.split()[1]) for name in names if " " in name]
    assert spaced == sorted(spaced)
    assert names.index("class9") < names.index("class10")


def test_a_long_title_breaks(tab, tmp_path):
    page = Made(one_query(), tmp_path / "page.html", title="x" * 300)
    tab.open(page.path, 400)
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_names_are_shown_and_not_run(tab, made):
    page = made("detection")
    tab.open(page.path)
    assert set(NAMES) <= set(cells(tab, 0))
    assert tab.value("window.hacked") is None
    assert tab.value("document.images.length") == 0
    assert tab.value("document.scripts.length") == 2
    assert quiet(tab, page)


def test_the_policy_stops_scripts_that_are_not_the_pages_own(tab, made, tmp_path):
    """What the escaping would let through, if it failed."""
    page = made("one query")
    hostile = tmp_path / "hostile.html"
    hostile.write_text(page.text.replace("</main>", "</main><script>window.hacked = 1</script>"), encoding="utf-8")
    tab.open(hostile)
    tab.value("new Promise(done => setTimeout(done, 50))")
    assert tab.value("window.hacked") is None
    assert any("Content Security Policy" in error for error in tab.errors)
    assert len(cells(tab, 0)) == 1  # its own has run


def test_the_keyboard_sorts(tab, made):
    page = made("ids")
    tab.open(page.path)
    for name, code, text in (("Enter", 13, "\r"), (" ", 32, " ")):
        tab.value(f"{HEAD.format(0)}.focus()")
        tab.press(name, code, text)
        assert directions(tab)[0] == {"Enter": "ascending", " ": "descending"}[name]
    ids = sorted((int(row[0]) for row in page.document.data["rows"]), reverse=True)
    assert cells(tab, 0) == [str(number) for number in ids][:100]
    tab.press("Tab", 9)
    assert tab.value(f"document.activeElement === {HEAD.format(1)}")
    assert tab.value(f"getComputedStyle({HEAD.format(1)}).outlineStyle") == "solid"  # and one sees where one is


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("detection", "CLASS 1", lambda row: "class 1" in row["name"].lower()),
        ("detection", "<script>", lambda row: "<script>" in row["name"]),
        ("detection", "ap < 0.3", lambda row: row["ap"] is not None and row["ap"] < 0.3),
        ("detection", "AP 0.75>=.5", lambda row: row["ap_75"] is not None and row["ap_75"] >= 0.5),
        ("detection", "ground_truths = 0", lambda row: row["ground_truths"] == 0),
        ("retrieval", " ap@10 <= 0.25 ", lambda row: row["ap@10"] is not None and row["ap@10"] <= 0.25),
        ("retrieval", "relevant > 5", lambda row: row["num_relevant"] > 5),
        ("retrieval", "nothing < 5", lambda row: False),
        ("ids", "00", lambda row: "00" in row["query"]),
    ],
)
def test_the_filter(tab, made, kind, text, wanted):
    page = made(kind)
    tab.open(page.path)
    data = page.document.data
    rows = [dict(zip([c["key"] for c in data["columns"]], row, strict=True)) for row in data["rows"]]
    tab.value("document.getElementById('filter').focus()")
    tab.type(text)
    expected = [next(iter(row.values())) for row in rows if wanted(row)]
    assert cells(tab, 0) == expected[:100]
    number = min(len(expected), 100)
    assert tab.value("document.getElementById('status').textContent") == f"{number} of {len(expected)} rows shown."
    tab.type("")
    assert len(cells(tab, 0)) == min(len(rows), 100)
    assert quiet(tab, page)


def test_a_long_table_is_shown_on_demand(tab, made):
    tab.open(made("retrieval").path)
    assert len(cells(tab, 0)) == 100
    tab.click("document.getElementById('more')")
    assert len(cells(tab, 0)) == 150
    assert tab.value("document.getElementById('status').textContent") == "150 of 150 rows shown."
    assert tab.value("getComputedStyle(document.getElementById('more')).display") == "none"


def test_in_print_the_page_is_light_and_has_no_controls(tab, made):
    tab.open(made("detection").path, scheme="dark")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    tab.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.querySelector('.filter')).display") == "none"
    tab.call("Emulation.setEmulatedMedia", media="", features=[])
