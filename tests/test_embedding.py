"""EmbeddingMAPAtK against plain loops over exact fractions, and its promise: no chunk, batch or order shows."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from map_metrics import EmbeddingMAPAtK, embedding
from map_metrics.functional import embedding_map, hashing_map, retrieval_map

SIMILARITIES = ("cosine", "dot", "euclidean")


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and gallery on a coarse grid (so that they tie), and their classes."""
    g = torch.Generator().manual_seed(seed)
    q, n, d = (int(torch.randint(1, high, (), generator=g)) for high in (6, 80, 9))
    queries, gallery = (torch.randint(-2, 3, (rows, d), generator=g) + 0.25 for rows in (q, n))
    return queries, torch.randint(0, 4, (q,), generator=g), gallery, torch.randint(0, 4, (n,), generator=g)


def similarity_matrix(queries: Tensor, gallery: Tensor, similarity: str) -> Tensor:
    """Exact similarities of the documented vectors, as ranks: loops over fractions."""

    def unit(row: list[float]) -> list[Fraction]:
        norm = math.sqrt(sum(x * x for x in row))
        return [Fraction(round(x / norm * 2**26)) for x in row]

    read = unit if similarity == "cosine" else lambda row: [Fraction(x) for x in row]
    mine, theirs = [read(row) for row in queries.tolist()], [read(row) for row in gallery.tolist()]
    if similarity == "euclidean":
        exact = [[-sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in theirs] for a in mine]
    else:
        exact = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in theirs] for a in mine]
    rank = {value: i for i, value in enumerate(sorted({value for row in exact for value in row}))}
    return torch.tensor([[rank[value] for value in row] for row in exact])


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    "conventions",
    [
        {},
        {"top_k": 3, "denominator": "hits"},
        {"ties": "stable", "top_k": 5},
        {"ties": "pessimistic", "denominator": "min", "top_k": 4},
        {"interpolation": "trapezoid", "empty_target_action": "skip"},
    ],
    ids=lambda c: "-".join(map(str, c.values())) or "default",
)
@pytest.mark.filterwarnings("ignore:No query to average over", "ignore:The mean average precision is far below")
def test_it_is_the_retrieval_map_of_the_exact_similarities(similarity, seed, conventions):
    queries, mine, gallery, theirs = drawn(seed)
    expected = retrieval_map(similarity_matrix(queries, gallery, similarity), mine[:, None] == theirs, **conventions)
    assert embedding_map(queries, mine, gallery, theirs, similarity=similarity, **conventions) == expected


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dims", [1, 2, 3, 64, 513])
def test_neither_chunks_nor_order_nor_batches_show(monkeypatch, similarity, dims):
    g = torch.Generator().manual_seed(dims)
    vectors, labels = torch.randn(500, dims, generator=g), torch.randint(0, 5, (500,), generator=g)
    values = set()
    for queries_at_once, items_at_once in ((64, 1 << 13), (7, 100), (1, 1)):
        monkeypatch.setattr(embedding, "_QUERIES", queries_at_once)
        monkeypatch.setattr(embedding, "_ITEMS", items_at_once if dims < 64 else max(items_at_once, 50))
        order = torch.randperm(500, generator=g)
        metric = EmbeddingMAPAtK(similarity=similarity)
        for part in order.split(90):
            metric.update(vectors[part], labels[part], query=part < 20, ids=part)
        values.add(metric.compute().item())
    assert len(values) == 1


def test_products_are_exact_at_any_length_and_scale():
    """No partial sum may need more than 53 bits: compare with Python's integers."""
    g = torch.Generator().manual_seed(0)
    for similarity in SIMILARITIES:
        for dims, scale in ((16, 1e-30), (512, 1.0), (2048, 1e30)):
            queries, gallery = (torch.randn(3, dims, generator=g).float() * scale for _ in range(2))
            vectors = embedding.exact_vectors(queries.double(), gallery.double(), similarity)
            product = vectors.queries @ vectors.gallery.T - vectors.offset
            for i in range(3):
                for j in range(3):
                    exact = sum(
                        Fraction(x) * Fraction(y)
                        for x, y in zip(*(v.tolist() for v in (vectors.queries[i], vectors.gallery[j])), strict=True)
                    ) - Fraction(float(vectors.offset[j]))
                    assert Fraction(float(product[i, j])) == exact
            assert float(vectors.gallery.norm(dim=1).max()) <= 1 + 1e-6


def test_rounding_moves_a_coordinate_by_less_than_half_an_ulp_of_float32_at_1():
    vectors = torch.nn.functional.normalize(torch.randn(50, 300, generator=torch.Generator().manual_seed(1)).double())
    rounded = embedding.exact_vectors(vectors, vectors, "cosine").queries
    assert float((rounded - vectors).abs().max()) <= 2**-27 + 1e-16


@pytest.mark.parametrize("relevance", ["any", "exact", 0.5, "weighted"])
@pytest.mark.parametrize("denominator", ["hits", "relevant"])
@pytest.mark.parametrize("top_k", [None, 3])
def test_signs_ranked_by_product_are_codes_ranked_by_distance(relevance, denominator, top_k):
    g = torch.Generator().manual_seed(3)
    codes, labels = torch.rand(40, 6, generator=g) < 0.5, torch.rand(40, 3, generator=g) < 0.5
    ids = torch.arange(40) * 2**40
    arguments = {"relevance": relevance, "denominator": denominator, "top_k": top_k, "exclude_self": True}
    arguments |= {"query_ids": ids, "gallery_ids": ids}
    if relevance == "weighted":
        arguments["label_weights"] = [0.7, 2.0, 0.1]  # none of which float32 holds but 2
    expected = hashing_map(codes, labels, codes, labels, **arguments)
    signs = codes * 2.0 - 1
    torch.testing.assert_close(
        embedding_map(signs, labels, signs, labels, similarity="dot", **arguments), expected, rtol=0, atol=1e-14
    )


def test_a_pair_is_relevant_by_its_id():
    """Image to caption: R = 1, AP is the reciprocal rank, of two images one of the ranks 2, 3 and 4."""
    images, captions = torch.eye(4), torch.eye(4)[[1, 0, 2, 3]]
    pair = torch.tensor([10, 20, 30, 40])
    tied = (1 / 2 + 1 / 3 + 1 / 4) / 3
    assert float(embedding_map(images, pair, captions, pair)) == pytest.approx((2 * tied + 2) / 4, abs=1e-15)


def test_embeddings_of_any_float_dtype_are_taken_as_float32():
    vectors, labels = torch.tensor([[1.0, 0.5], [0.25, 2.0], [1.0, 1.0]]), torch.tensor([0, 1, 0])
    expected = embedding_map(vectors[:1], labels[:1], vectors, labels)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert embedding_map(vectors[:1].to(dtype), labels[:1], vectors.to(dtype), labels) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": torch.ones(2)}, r"`embeddings` .*\(n, dims\).*\(2,\)"),
        ({"embeddings": torch.ones(2, 3, dtype=torch.int64)}, "`embeddings` .*floats.*int64"),
        ({"embeddings": torch.tensor([[1.0, 2, 3], [math.nan, 0, 0]])}, r"`embeddings` .*finite.*\(1, 0\)"),
        ({"embeddings": torch.tensor([[1.0, 2, 3], [1e39, 0, 0]], dtype=torch.float64)}, "`embeddings` .*finite"),
        ({"embeddings": torch.tensor([[1.0, 2, 3], [0, 0, 0]])}, "`embeddings` .*zero vector.*row 1"),
        ({"embeddings": torch.ones(2, 4)}, "`embeddings` and `labels` .*3 dimensions.*4 dimensions"),
        ({"labels": torch.ones(3)}, r"`labels` .*\(2,\)"),
        ({"query": 1}, "`query` .*bool"),
        ({"ids": torch.ones(1, dtype=torch.int64)}, r"`ids` .*\(2,\)"),
    ],
)
def test_a_refused_update_names_the_fault_and_leaves_the_state(change, message):
    good = {"embeddings": torch.ones(2, 3), "labels": torch.tensor([0, 1]), "query": True}
    metric = EmbeddingMAPAtK()
    metric.update(**good)
    before = [block.clone() for block in metric.rows]
    with pytest.raises(ValueError, match=message):
        metric.update(**{**good, **change})
    assert all(map(torch.equal, before, metric.rows))
    assert len(before) == len(metric.rows)


@pytest.mark.parametrize(
    "arguments",
    [{"similarity": "l2"}, {"similarity": None}, {"top_k": 0}, {"relevance": "weighted", "ties": "stable"}],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}`"):
        EmbeddingMAPAtK(**arguments)


def test_no_gallery_and_no_queries():
    empty, none = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    vectors, labels = torch.ones(2, 3), torch.tensor([0, 1])
    assert embedding_map(vectors, labels, empty, none) == 0
    with pytest.warns(UserWarning, match="No query"):
        assert embedding_map(empty, none, vectors, labels) == 0
