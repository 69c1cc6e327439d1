"""Inputs at the edge of what an argument can be: refused by name, or taken for what they say."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from map_metrics import DetectionMAP, EmbeddingMAPAtK, HashingMAPAtK, RetrievalMAP
from map_metrics.detection.protocols import COCO
from map_metrics.functional import average_precision, detection_map, embedding_map, hashing_map, retrieval_map

T = torch.tensor
SCORES, TARGET = T([[0.9, 0.5, 0.1]]), T([[0, 1, 0]])
ONES, LABEL = torch.ones(1, 3), T([1])
SIDES = {"query_labels": LABEL, "gallery_labels": LABEL, "query_ids": LABEL, "gallery_ids": LABEL}
CODES = SIDES | {"query_codes": ONES, "gallery_codes": ONES}
VECTORS = SIDES | {"query_embeddings": ONES, "gallery_embeddings": ONES}


def found(boxes=((0, 0, 10, 10), (50, 0, 60, 10)), scores=(0.9, 0.8), label=torch.int64) -> list[dict]:
    return [{"boxes": T(boxes).float(), "scores": T(scores), "labels": T((1, 1), dtype=label)}]


def true(boxes=((0, 0, 10, 10), (50, 0, 60, 10)), labels=(1, 1), **more) -> list[dict]:
    return [{"boxes": T(boxes).float(), "labels": T(labels), **more}]


REFUSED = {
    "ignore_index beyond 64 bits": (lambda: RetrievalMAP(ignore_index=2**70), "`ignore_index` .*64 bits"),
    "ignore_index as a bool": (lambda: retrieval_map(SCORES, TARGET, ignore_index=True), "`ignore_index`"),
    "R beyond 2^53": (lambda: average_precision(T([1]), T([1]), num_relevant=2**70), "`num_relevant` .*2\\^53"),
    "items beyond 2^53": (lambda: average_precision(T([2**62] * 3), T([1] * 3)), "`total` .*2\\^53"),
    "two R of a query in a batch": (
        lambda: retrieval_map(T([0.9, 0.8]), T([1, 0]), T([0, 0]), num_relevant=T([1, 2])),
        "`num_relevant` .*one number",
    ),
    "a cut-off as bytes": (lambda: RetrievalMAP(top_k=b"ab"), "`top_k`"),
    "an aggregation without a number": (
        lambda: retrieval_map(torch.ones(2, 2), torch.ones(2, 2), aggregation=lambda ap: ap),
        "`aggregation` .*one number",
    ),
    "hashing: exclude_self as text": (
        lambda: hashing_map(**CODES, exclude_self="no"),
        "`exclude_self` .*True or False",
    ),
    "hashing: packed as 1": (lambda: hashing_map(**CODES, packed=1), "`packed` .*True or False"),
    "embedding: exclude_self as text": (lambda: embedding_map(**VECTORS, exclude_self="no"), "`exclude_self`"),
    "detection: validate_args as text": (lambda: DetectionMAP(validate_args="no"), "`validate_args`"),
    "detection: a cap beyond 64 bits": (
        lambda: DetectionMAP(max_detection_thresholds=[2**70]),
        "`max_detection_thresholds`",
    ),
    "detection: a class name of True": (lambda: DetectionMAP(class_names={True: "a"}), "`class_names`"),
    "detection: integer scores beyond 2^53": (
        lambda: detection_map(found(scores=(2**53, 2**53 + 1)), true()),
        "scores.*2\\^53",
    ),
    "detection: integer boxes beyond 2^53": (
        lambda: detection_map([found()[0] | {"boxes": T([[0, 0, 2**53 + 1, 1]] * 2)}], true()),
        "boxes.*2\\^53",
    ),
    "protocol: no thresholds": (lambda: replace(COCO, iou_thresholds=()), "`iou_thresholds`"),
    "protocol: a threshold above 1": (lambda: replace(COCO, iou_thresholds=(1.1,)), "`iou_thresholds`"),
    "protocol: no areas": (lambda: replace(COCO, areas=()), "`areas`"),
    "protocol: areas as a number": (lambda: replace(COCO, areas=5), "`areas` must hold .name, low, high., got 5"),
    "protocol: areas without names": (lambda: replace(COCO, areas=((0, 1),)), "`areas` must hold .name, low, high."),
    "protocol: an area of texts": (lambda: replace(COCO, areas=(("a", "b", "c"),)), "`areas` must hold .name, low"),
    "protocol: an area of NaN": (lambda: replace(COCO, areas=(("a", 0.0, float("nan")),)), "`areas` .*low <= high"),
    "protocol: areas of one name": (lambda: replace(COCO, areas=(*COCO.areas, COCO.areas[1])), "`areas` .*distinct"),
    "protocol: an area called 50": (lambda: replace(COCO, areas=(*COCO.areas, ("50", 0.0, 1.0))), "`areas` .*taken"),
    "protocol: an area called as a cap": (
        lambda: replace(COCO, areas=(*COCO.areas, ("7", 0.0, 1.0)), max_detections=(7,)),
        "`areas` .*taken",
    ),
    "protocol: a flag that no target has": (
        lambda: replace(COCO, ignored=("hidden",)),
        "`ignored` must be .*out of .*'difficult'.*got .'hidden'",
    ),
    "protocol: a range upside down": (lambda: replace(COCO, areas=(("all", 5.0, 1.0),)), "`areas` .*low <= high"),
}


NO_NUMBERS = [None, "x", b"x", 0.5j, float("nan"), Fraction(10**400), [0.5], {0.5}, {0.5: 0.5}, print, object()]
NO_NUMBERS += [np.array([0.5]), np.array(["x"]), np.datetime64("2020-01-01"), T([0.5]), T([0.5]).to("meta")]
NO_LISTS = [
    "x",
    b"x",
    0.5j,
    float("nan"),
    {0.5},
    {0.5: 0.5},
    print,
    object(),
    [],
    (),
    np.array(0.5),
    np.zeros((1, 1)),
    T(0.5),
]
NO_LISTS += [T([]), T([[0.5]]), T([0.5j]), T([0.5]).to("meta"), T([0.5]).to_sparse()]
LISTS = {
    "iou_thresholds": lambda value: DetectionMAP(iou_thresholds=value),
    "rec_thresholds": lambda value: DetectionMAP(rec_thresholds=value),
    "max_detection_thresholds": lambda value: DetectionMAP(max_detection_thresholds=value),
    "sigmas": lambda value: DetectionMAP(iou_type="keypoints", sigmas=value),
    "label_weights": lambda value: HashingMAPAtK(relevance="weighted", label_weights=value),
    "areas": lambda value: replace(COCO, areas=value),
    "top_k": lambda value: RetrievalMAP(top_k=value),
}
SINGLE = {
    "area": lambda value: replace(COCO, areas=[("all", 0.0, value)]),
    "areas": lambda value: replace(COCO, areas=[(value, 0.0, 1.0)] if value != "x" else value),
    "group_weight": lambda value: replace(COCO, group_weight=value),
    "epsilon": lambda value: replace(COCO, epsilon=value),
    "ignored": lambda value: replace(COCO, ignored=[value]),
    "ties": lambda value: replace(COCO, ties=value),
    "protocol": lambda value: DetectionMAP(protocol=value),
    "iou_type": lambda value: DetectionMAP(iou_type=[value]),
    "average": lambda value: DetectionMAP(average=value),
    "class_names": lambda value: DetectionMAP(class_names={1: value} if value != "x" else value),
    "hierarchy": lambda value: DetectionMAP(hierarchy={1: value}),
    "relevance": lambda value: HashingMAPAtK(relevance=value),
    "denominator": lambda value: RetrievalMAP(denominator=value),
}


def shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:30]}"


@pytest.mark.parametrize("value", NO_NUMBERS, ids=shown)
@pytest.mark.parametrize("name", [*LISTS, *SINGLE])
def test_what_is_no_number_is_refused_by_name(name, value):
    """Nor is it the name of anything."""
    calls = [SINGLE[name]] if name in SINGLE else []
    if name in LISTS:
        calls += [lambda value: LISTS[name]([value]), lambda value: LISTS[name]((0.5, value))]
    for call in calls:
        with pytest.raises(ValueError, match=f"Argument `{name}s?` must"):
            call(value)


@pytest.mark.parametrize("value", NO_LISTS, ids=shown)
@pytest.mark.parametrize("name", LISTS)
def test_what_is_no_list_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"Argument `{name}` must"):
        LISTS[name](value)


@pytest.mark.parametrize("value", [10**400, -(10**400), 2**1024])
def test_an_int_that_no_float_holds_is_refused(value):
    for name in LISTS.keys() - {"top_k"}:  # beyond the end of every list
        with pytest.raises(ValueError, match=f"Argument `{name}` must"):
            LISTS[name]([value])
    for name in ("area", "epsilon", "group_weight"):
        with pytest.raises(ValueError, match=f"Argument `{name}s?` must"):
            SINGLE[name](value)
    assert float(retrieval_map(SCORES, TARGET, top_k=2**1024)) == 0.5


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_caps_of_a_protocol_are_put_in_order():
    for caps in ((100, 1), (1, 100)):
        value = detection_map(found(), true(), protocol=replace(COCO, max_detections=caps))
        assert float(value["map"]) == pytest.approx(1.0)
        assert [key for key in value if key.startswith("mar_1")] == ["mar_1", "mar_100"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers_are_integers(dtype):
    target = true(image_id=T(3, dtype=dtype))
    target[0]["labels"] = target[0]["labels"].to(dtype)
    assert float(detection_map(found(label=dtype), target)["map"]) == pytest.approx(1.0)
    assert float(retrieval_map(SCORES, TARGET.to(dtype), T([[4, 4, 4]]).to(dtype))) == 0.5


def test_scores_of_8_bits_are_scores():
    for form in ({}, {"indexes": torch.zeros(1, 3, dtype=torch.int64)}):
        assert float(retrieval_map(SCORES.to(torch.float8_e4m3fn), TARGET, **form)) == 0.5


def test_numpy_scalars_are_taken_as_numbers():
    metric = RetrievalMAP(ignore_index=np.int64(-1), top_k=np.int64(2))
    metric.update(SCORES, TARGET)
    assert float(metric.compute()) == 0.5
    assert HashingMAPAtK(relevance=np.float32(0.5)).relevance.rule == 0.5
    assert float(average_precision(T([1, 1]), T([1, 0]), num_relevant=np.int64(2))) == 0.5
    named = DetectionMAP(
        class_names={np.int64(1): "a"}, max_detection_thresholds=[np.int64(5)], iou_thresholds=[np.float32(0.5)]
    )
    named.update(found(), true(image_id=np.int64(3)))
    assert float(named.compute()["map"]) == pytest.approx(1.0)
    EmbeddingMAPAtK().update(ONES, LABEL, query=np.bool_(True))


def test_half_precision_is_said_by_the_functions_too():
    with pytest.warns(UserWarning, match="float16"):
        retrieval_map(SCORES.half(), TARGET)
    boxes = [side | {"boxes": side["boxes"].bfloat16() + 1000} for side in (found()[0], true()[0])]
    with pytest.warns(UserWarning, match="bfloat16"):
        detection_map(boxes[:1], boxes[1:])


@pytest.mark.parametrize("table", [None, [None], "x", torch.zeros(1, 9), torch.zeros(1, 9, dtype=torch.int64), T(3)])
def test_a_broken_table_is_neither_merged_nor_loaded(table):
    metric = DetectionMAP()
    metric.update(found(), true())
    before = metric.compute()["map"]
    metric.persistent(True)
    broken = {**metric.metric_state, "images": table}
    with pytest.raises(ValueError, match="`images`"):
        metric.merge_state(broken)
    with pytest.raises(RuntimeError, match="broken table `images`"):
        metric.load_state_dict(broken)
    metric._computed = None
    assert metric.compute()["map"] == before


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    nested = torch.nested.nested_tensor([T([0.5])])
    with pytest.raises(ValueError, match="Argument `iou_thresholds` must be a dense tensor, got a nested one"):
        DetectionMAP(iou_thresholds=nested)
    with pytest.raises(ValueError, match="Argument `preds` must be a dense tensor"):
        retrieval_map(nested, TARGET)
    for key in ("boxes", "scores", "labels"):
        with pytest.raises(ValueError, match=rf"preds\[0\]\['{key}'\].* must be a dense tensor"):
            detection_map([found()[0] | {key: nested}], true())


def ranked(cls=RetrievalMAP):
    metric = cls()
    if cls is RetrievalMAP:
        metric.update(SCORES.repeat(2, 1), TARGET.repeat(2, 1))
    else:
        metric.update(torch.ones(2, 3), labels=T([1, 2]), query=True)
        metric.update(torch.ones(2, 3), labels=T([1, 2]), query=False)
    return metric.result()


def detected():
    metric = DetectionMAP()
    metric.update(found(), true())
    return metric.result()


QUESTIONS = {
    "n of a ranking": ("n", lambda value: ranked().worst(value)),
    "n of images": ("n", lambda value: detected().worst_images(value)),
    "k of precision": ("k", lambda value: ranked().precision_at(value)),
    "k of recall": ("k", lambda value: ranked().recall_at(value)),
    "points": ("points", lambda value: ranked().curve(value)),
    "radius": ("radius", lambda value: ranked(HashingMAPAtK).precision_within(value)),
    "pooled": ("pooled", lambda value: ranked(HashingMAPAtK).radius_curve(pooled=value)),
    "groups of queries": ("groups", lambda value: ranked().by_group(value)),
    "groups of queries, one of them": ("groups", lambda value: ranked().by_group(["a", [value]])),
    "groups of images": ("groups", lambda value: detected().by_slice(value)),
    "seed": ("seed", lambda value: detected().bootstrap(2, seed=value)),
    "confidence": ("confidence", lambda value: detected().bootstrap(2, confidence=value)),
}


@pytest.mark.parametrize(
    "value", [None, "text", -1, 1.5, float("nan"), 0.5j, print, T(1.5), T(1).to("meta")], ids=shown
)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_with_a_bad_argument_is_refused_by_name(question, value):
    name, ask = QUESTIONS[question]
    with pytest.raises(ValueError, match=f"Argument `{name}` must"):
        ask(value)


def test_a_question_about_too_much_is_refused():
    for question in ("k of precision", "points"):
        name, ask = QUESTIONS[question]
        for value in (10**400, 2**63):
            with pytest.raises(ValueError, match=f"Argument `{name}` must"):
                ask(value)
    assert ranked().precision_at(np.int64(2)).tolist() == [0.5, 0.5]
    assert ranked().by_group(np.array([3, 3])) == ranked().by_group(T([3, 3])) == {3: {"map": 0.5, "count": 2}}
    assert list(ranked().by_group(range(2))) == list(ranked().by_group((0, 1))) == [0, 1]
