"""Readers of archives: every kind gives the same rows, and nothing is unpickled."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from map_metrics.readers import ReadError, read_archive, read_arrays

CODES = np.array([[1, -1], [1, 1], [-1, -1]], np.int8)
LABELS = np.array([7, 7, 3])
QUERY = np.array([True, False, False])


def is_expected(rows, ids=None):
    assert rows.data.tolist() == CODES.tolist()
    assert rows.labels.tolist() == LABELS.tolist()
    assert rows.query.tolist() == QUERY.tolist()
    assert (None if rows.ids is None else rows.ids.tolist()) == ids


def test_every_kind_of_archive(tmp_path):
    arrays = {"codes": CODES, "labels": LABELS, "query": QUERY}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, tmp_path / "c.pt")
    (tmp_path / "d").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "d" / f"{name}.npy", array)
    for name in ("a.npz", "b.npz", "c.pt", "d"):
        is_expected(read_archive(tmp_path / name))
    assert read_arrays(tmp_path / "d" / "codes.npy")["codes"].tolist() == CODES.tolist()


def test_both_ways_to_tell_the_sides(tmp_path):
    np.savez(tmp_path / "a.npz", codes=CODES, labels=LABELS, ids=[5, 6, 7])
    is_expected(read_archive(tmp_path / "a.npz", num_queries=1), [5, 6, 7])
    sides = {"query": slice(1), "gallery": slice(1, 3)}
    arrays = {f"{side}_{name}": x[part] for side, part in sides.items() for name, x in (("x", CODES), ("y", LABELS))}
    np.savez(tmp_path / "b.npz", **arrays)
    is_expected(read_archive(tmp_path / "b.npz", "x", labels="y"))
    np.savez(tmp_path / "b.npz", **arrays, query_ids=[5], gallery_ids=[6, 7])
    is_expected(read_archive(tmp_path / "b.npz", "x", labels="y"), [5, 6, 7])


def test_byte_order_and_unsigned_integers(tmp_path):
    np.savez(tmp_path / "a.npz", codes=CODES.astype(">f4"), labels=LABELS.astype(np.uint16), query=QUERY)
    rows = read_archive(tmp_path / "a.npz")
    is_expected(rows)
    assert (rows.data.dtype, rows.labels.dtype) == (torch.float32, torch.int64)


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.pt", "b.pt", "c.npy"])
def test_nothing_is_unpickled(tmp_path, name):
    path, objects = tmp_path / name, np.array([Harmful()], dtype=object)
    if name == "a.npz":
        np.savez(path, codes=objects, labels=LABELS, query=QUERY)
    elif name == "a.npy":
        np.save(path, objects)
    elif name == "a.pt":
        torch.save({"codes": Harmful()}, path)
    else:
        path.write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ReadError, match=f"{name}: must be an npz, npy or pt archive of plain arrays") as caught:
        read_archive(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"labels": LABELS, "query": QUERY}, {}, "must hold the array 'codes', got ['labels', 'query']"),
        ({"codes": CODES, "labels": LABELS}, {}, "or a bool array 'query', or say how many rows are queries"),
        ({"codes": CODES, "labels": LABELS, "query": [1, 0, 0]}, {}, "'query' must be bool of the shape (3,)"),
        ({"codes": CODES, "labels": LABELS[:2], "query": QUERY}, {}, "'labels' must have one row for each of the 3"),
        ({"codes": CODES, "labels": LABELS}, {"num_queries": 4}, "must have at least num_queries=4 rows"),
        ({"codes": CODES, "labels": LABELS}, {"num_queries": 0}, "must have at least num_queries=0 rows"),
        ({"codes": CODES, "labels": LABELS, "query": QUERY}, {"ids": "names"}, "must hold the array 'names'"),
        ({"codes": CODES, "labels": ["a", "b", "c"], "query": QUERY}, {}, "the array 'labels' must hold numbers"),
        ({"codes": 3, "labels": LABELS, "query": QUERY}, {}, "the array 'codes' must have rows"),
        ({"codes": CODES, "labels": np.array([2**63] * 3, np.uint64)}, {}, "'labels' must hold integers below 2^63"),
        (
            {"query_codes": CODES, "gallery_codes": CODES[:, :1], "query_labels": LABELS, "gallery_labels": LABELS},
            {},
            "query_codes and gallery_codes must be of one width and dtype, got torch.int8 (3, 2) and torch.int8 (3, 1)",
        ),
    ],
)
def test_a_mistake(tmp_path, arrays, options, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ReadError) as caught:
        read_archive(tmp_path / "a.npz", **options)
    assert message in str(caught.value)


def test_files_that_are_no_archives(tmp_path):
    np.savez(tmp_path / "whole.npz", codes=CODES)
    np.save(tmp_path / "whole.npy", CODES)
    whole = (tmp_path / "whole.npz").read_bytes()
    broken = {"a.npz": b"", "b.npz": whole[:-30], "c.npy": (tmp_path / "whole.npy").read_bytes()[:-2], "d.pt": whole}
    broken |= {"e.npz": b"text", "f.pt": b"", "g.pt": b"text"}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ReadError, match=name):
            read_arrays(tmp_path / name)
    torch.save([torch.zeros(2)], tmp_path / "h.pt")
    with pytest.raises(ReadError, match="must hold a tensor or a dict of tensors, got list"):
        read_arrays(tmp_path / "h.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReadError, match=r"must hold \.npy files"):
        read_arrays(tmp_path / "empty")
