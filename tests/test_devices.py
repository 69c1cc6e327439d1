"""The same bits on every device. What a GPU runs in another way than the CPU runs here on both."""

import numpy as np
import pytest
import torch
from cases import BY_NAME, CASES, assert_same, fed

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP
from map_metrics.detection.result import DetectionResult
from map_metrics.functional import embedding_map, hashing_map, retrieval_map
from map_metrics.hamming import Part, as_words, histograms, histograms_by_product, pack_bits
from map_metrics.ranking import count_by_search, count_reaching, levels_of

GPUS = [pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else []
DEVICES = ["cpu", *GPUS]


def same(first, second) -> None:
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            same(value, second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first.cpu(), second.cpu())
    else:
        assert first == second


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [1, 8, 63, 64, 65, 100, 255, 256, 300])
def test_products_count_distances_as_xor_does(bits, device, monkeypatch):
    rng = torch.Generator().manual_seed(bits)
    mine, theirs = torch.rand(7, bits, generator=rng) < 0.5, torch.rand(50, bits, generator=rng) < 0.5
    rows = [torch.tensor([0, 2, 5]), torch.tensor([1, 3]), torch.tensor([6]), torch.tensor([4])]
    items = [torch.arange(20), torch.arange(50), torch.arange(10, 50, 3), torch.arange(0)]
    kinds = [(torch.rand(len(i), generator=rng) < 0.4).numpy() for i in items]
    queries, gallery = as_words(pack_bits(mine)), as_words(pack_bits(theirs))
    codes = [np.ascontiguousarray(gallery[:, i.numpy()]) for i in items]
    parts = list(map(Part, rows, codes, kinds))

    expected = torch.zeros(7, 2, bits + 1, dtype=torch.int64)  # pair by pair
    for r, i, kind in zip(rows, items, kinds, strict=True):
        for query in r.tolist():
            for j, item in enumerate(i.tolist()):
                expected[query, int(kind[j]), int((mine[query] != theirs[item]).sum())] += 1
    assert torch.equal(histograms(queries, iter(parts), bits), expected)
    for free in (1, 100, 1 << 20):  # one query at a time, a few, all
        monkeypatch.setattr("map_metrics.hamming._pairs_at_once", lambda _, free=free: free)
        assert torch.equal(histograms_by_product(queries, iter(parts), bits, torch.device(device)), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "columns", "share"), [(1, 1, 1.0), (5, 40, 0.2), (3, 5000, 0.01), (4, 300, 0.5)])
def test_searching_counts_as_comparing_and_sorting_do(rows, columns, share, device):
    rng = torch.Generator().manual_seed(columns)
    score = torch.randint(-9, 9, (rows, columns), generator=rng).double() / 2  # many ties
    score[torch.rand(rows, columns, generator=rng) < 0.1] = -torch.inf
    relevant = (torch.rand(rows, columns, generator=rng) < share) & (score > -torch.inf)
    query, column = relevant.nonzero(as_tuple=True)
    row, level, _ = levels_of(query, score[query, column])
    if not len(row):
        row, level = torch.tensor([0]), torch.zeros(1, dtype=torch.float64)
    place = torch.arange(len(row)) - torch.searchsorted(row, row)
    above, reached = count_by_search(score.to(device), row, place, level)
    assert above.tolist() == [int((score[r] > v).sum()) for r, v in zip(row.tolist(), level, strict=True)]
    assert reached.tolist() == [int((score[r] >= v).sum()) for r, v in zip(row.tolist(), level, strict=True)]
    for ours, expected in zip(count_reaching(score, row, place, level), (above, reached), strict=True):
        assert torch.equal(ours, expected)


def retrieval(device):
    rng = torch.Generator().manual_seed(3)
    score = torch.randint(0, 40, (6, 200), generator=rng).float()
    target = torch.rand(6, 200, generator=rng) < 0.1
    score[0, :9] = -torch.inf
    metric = RetrievalMAP(ignore_index=-1).to(device)
    labels = torch.where(score == 7, -1, target.long())
    metric.update(score.to(device), labels.to(device), ids=torch.arange(6, device=device))
    metric.update(score[0].to(device), target[0].to(device), torch.full((200,), 9, device=device))
    return [metric.compute(), retrieval_map(score.to(device), target.to(device), top_k=[3, 50])]


def hashing(device):
    rng = torch.Generator().manual_seed(4)
    codes = (torch.rand(90, 48, generator=rng) < 0.5).to(device)
    labels = torch.rand(90, 5, generator=rng) < 0.3
    values = []
    for relevance in ("any", "exact", 0.5, "weighted"):
        metric = HashingMAPAtK(top_k=20, relevance=relevance, exclude_self=True).to(device)
        ids = torch.arange(90, device=device) % 70
        metric.update(codes, labels.to(device), query=torch.arange(90, device=device) < 20, ids=ids)
        values.append(metric.compute())
    single = labels.long().argmax(1).to(device)
    return [*values, hashing_map(codes[:20], single[:20], codes[20:], single[20:], ties="pessimistic")]


def embedding(device):
    rng = torch.Generator().manual_seed(5)
    vectors = torch.randint(-3, 4, (120, 10), generator=rng).float() + 0.5
    labels = torch.randint(0, 6, (120,), generator=rng)
    values = []
    for similarity in ("cosine", "dot", "euclidean"):
        for ties in ("expected", "stable"):
            metric = EmbeddingMAPAtK(similarity=similarity, ties=ties).to(device)
            metric.update(
                vectors.to(device),
                labels.to(device),
                query=torch.arange(120) < 30,
                ids=torch.arange(120, device=device),
            )
            values.append(metric.compute())
    vectors, labels = vectors.to(device), labels.to(device)
    return [*values, embedding_map(vectors[:9], labels[:9], vectors[9:], labels[9:], top_k=5)]


def detection(device):
    rng = torch.Generator().manual_seed(6)
    corner, side = torch.rand(40, 2, generator=rng) * 50, torch.rand(40, 2, generator=rng) * 40 + 1
    boxes = torch.cat([corner, corner + side], 1).to(device)
    labels, scores = torch.arange(40, device=device) % 3, torch.rand(40, generator=rng).to(device)
    metric = DetectionMAP(class_metrics=True).to(device)
    metric.update(
        [{"boxes": boxes + 1, "scores": scores, "labels": labels}], [{"boxes": boxes[::2], "labels": labels[::2]}]
    )
    return [metric.compute()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", [retrieval, hashing, embedding, detection])
def test_every_device_gives_the_same_bits(values, device, monkeypatch):
    expected = values("cpu")
    # the way of a GPU: on a CUDA device by itself, here by hand
    monkeypatch.setattr("map_metrics.ranking.count_reaching", count_by_search)
    monkeypatch.setattr("map_metrics.embedding.count_reaching", count_by_search)
    monkeypatch.setattr(
        "map_metrics.hashing.histograms",
        lambda queries, parts, bits: histograms_by_product(queries, parts, bits, torch.device(device)),
    )
    for first, second in zip(values(device), expected, strict=True):
        same(first, second)


# --- another default device ------------------------------------------------------------------------------------------


ELSEWHERE = torch.device("meta")  # stands for any other: what is made on it cannot meet a tensor of the CPU


def answers(result) -> dict:
    """What a result of any kind says, first asked here."""
    if isinstance(result, dict):
        return {name: answers(part) for name, part in result.items()}
    said = {
        "numbers": result.to_dict(),
        "value": result.value(),
        "text": repr(result),
        "compared": result.compare(result).to_dict(),
    }
    if isinstance(result, DetectionResult):
        said |= {"text": result.summary(), "classes": result.per_class(), "images": result.worst_images()}
        said |= {"bounds": result.bounds, "interval": result.bootstrap(5), "errors": result.errors()}
        said |= {"slices": result.by_slice([0] * result.num_images), "confusion": result.confusion_matrix()}
        return said | {"f": result.best_f(), "curve": result.pr_curve(int(result.classes[0]))}
    said |= {"chance": result.chance, "worst": result.worst(3), "groups": result.by_group([0] * len(result.query))}
    return said | {"precision": result.precision_at(2), "recall": result.recall_at(2), "curve": result.curve()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_another_default_device_changes_nothing(case):
    batches, others = case.batches(), case.batches()
    expected, pure = case.value(batches), case.pure(batches)
    said, twin = answers(fed(case.make(), batches).result()), case.make()
    with ELSEWHERE:
        assert_same(fed(twin, others).compute(), expected)
        assert_same(case.pure(others), pure)
        assert_same(answers(twin.result()), said)
        twin(**others[0])


def test_the_default_of_the_whole_program_may_be_another():
    metric = BY_NAME["detection-macro"].make()
    batches = BY_NAME["detection-macro"].batches()
    torch.set_default_device(ELSEWHERE)
    try:
        value = fed(metric, batches).compute()
        assert torch.zeros(1).device == ELSEWHERE
    finally:
        torch.set_default_device(None)
    assert_same(value, BY_NAME["detection-macro"].value(batches))
