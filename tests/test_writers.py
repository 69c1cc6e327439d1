"""Files that are written and read again: the same bits; and pycocotools and trec_eval's code read them too."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
import pytrec_eval
import torch
import torch.distributed as dist
from cases import assert_same
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from map_metrics import DetectionMAP, RetrievalMAP, presets
from map_metrics.readers import read_trec

# --- COCO -------------------------------------------------------------------------------------------------------------


def scene(seed: int, named: str) -> tuple[list[dict], list[dict]]:
    """Float32 boxes with all their bits, equal scores across images, crowds, flags, some areas, background images."""
    rng = torch.Generator().manual_seed(seed)
    preds, target = [], []
    for image in range(9):
        count = 0 if image % 4 == 3 else 7
        corner = torch.rand((count, 2), generator=rng) * 60
        box = torch.cat([corner, corner + 5 + torch.rand((count, 2), generator=rng) * 60], 1)
        labels = torch.randint(-1, 3, (count,), generator=rng) * 7
        found = box + torch.randn((count, 4), generator=rng) * 2
        found[:, 2:] = torch.maximum(found[:, 2:], found[:, :2])
        scores = torch.randint(0, 5, (count,), generator=rng) / 3
        preds.append({"boxes": found, "scores": scores, "labels": labels})
        truth = {"boxes": box, "labels": labels, "iscrowd": (torch.rand(count, generator=rng) < 0.2).long()}
        if image % 2:
            truth["area"] = torch.rand(count, generator=rng, dtype=torch.float64) * 5000
            truth["difficult"] = (torch.rand(count, generator=rng) < 0.3).long()
        if named == "all" or (named == "some" and image > 4):
            truth["image_id"] = 100 - image
        target.append(truth)
    if named == "all":
        preds.append(preds[2])  # a sampler repeats it
        target.append(target[2])
    return preds, target


@pytest.mark.parametrize("options", [{}, {"average": "micro"}, {"protocol": "voc2012"}, {"protocol": "lvis"}], ids=str)
@pytest.mark.parametrize("named", ["all", "some", "none"])
@pytest.mark.parametrize("seed", [0, 1])
def test_coco_round_trip(tmp_path, seed, named, options):
    metric = DetectionMAP(**options, class_metrics=True)
    preds, target = scene(seed, named)
    target[0] |= {"neg_category_ids": [7], "not_exhaustive_category_ids": [0, 14]}
    metric.update(preds, target)
    metric.to_coco(tmp_path / "made" / "here")
    files = (tmp_path / "made" / "here" / name for name in ("ground_truth.json", "detections.json"))
    again = DetectionMAP.from_coco(*files, **options, class_metrics=True)
    assert_same(again.compute(), metric.compute())
    assert again.result().num_images == metric.result().num_images == 9
    assert again.result().num_duplicates == 0


def test_pycocotools_reads_the_files(tmp_path):
    metric = DetectionMAP(class_names={-7: "a", 0: "b", 7: "c", 14: "d", 99: "e"})
    metric.update(*scene(3, "all"))
    metric.to_coco(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "ground_truth.json"))
        evaluation = COCOeval(truth, truth.loadRes(str(tmp_path / "detections.json")), "bbox")
        for entry in truth.anns.values():  # where no area is given it is that of the box, here as there
            entry.setdefault("area", entry["bbox"][2] * entry["bbox"][3])
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert [c["name"] for c in truth.loadCats(truth.getCatIds())] == ["a", "b", "c", "d", "e"]
    assert [float(value) for value in metric.result().numbers.values()] == evaluation.stats.tolist()


def test_nothing_is_written_of_other_shapes(tmp_path):
    with pytest.raises(ValueError, match=r"to_coco needs iou_type='bbox', got \('segm',\)"):
        DetectionMAP(iou_type="segm").to_coco(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_metric_without_images(tmp_path):
    DetectionMAP().to_coco(tmp_path)
    assert json.loads((tmp_path / "detections.json").read_text()) == []
    assert DetectionMAP.from_coco(tmp_path / "ground_truth.json", tmp_path / "detections.json").result().num_images == 0


# --- TREC -------------------------------------------------------------------------------------------------------------


def rows(seed: int, *, ids: bool) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    n = 400
    scores = torch.randint(0, 30, (n,), generator=rng) / 7
    scores[torch.rand(n, generator=rng) < 0.1] = -torch.inf
    made = {
        "preds": scores,
        "target": torch.rand(n, generator=rng) < 0.2,
        "indexes": torch.randint(-5, 15, (n,), generator=rng),
    }
    return made | {"ids": torch.randint(-60, 400, (n,), generator=rng)} if ids else made


@pytest.mark.filterwarnings("ignore:.*repeat an id")
@pytest.mark.parametrize(
    "options", [{}, presets.TREC, {"ties": "stable", "top_k": [1, 5]}, {"largest": False}], ids=str
)
@pytest.mark.parametrize("ids", ["all", "none", "both"])
@pytest.mark.parametrize("seed", [0, 1])
def test_trec_round_trip(tmp_path, seed, ids, options):
    metric = RetrievalMAP(**options)
    for seed_of_batch, with_ids in ((seed, ids != "none"), (seed + 9, ids == "all")):
        batch = rows(seed_of_batch, ids=with_ids)
        metric.update(**batch | {"preds": batch["preds"] if options.get("largest", True) else -batch["preds"]})
    metric.to_trec(tmp_path / "run", tmp_path / "qrels")
    again = RetrievalMAP(**{**options, "largest": True})
    again.update(**read_trec(tmp_path / "qrels", tmp_path / "run", integer_ids=True).rows)
    assert_same(again.compute(), metric.compute())
    assert again.result().query.tolist() == metric.result().query.tolist()
    assert again.result().num_relevant.tolist() == metric.result().num_relevant.tolist()


def test_trec_evals_code_reads_the_files(tmp_path):
    batch = rows(4, ids=False)
    batch["preds"] = batch["preds"].double() + torch.arange(400) / 1024  # no ties, whatever the names
    metric = RetrievalMAP()
    metric.update(**batch)
    metric.to_trec(tmp_path / "run", tmp_path / "qrels")
    with (tmp_path / "run").open() as run, (tmp_path / "qrels").open() as qrels:
        evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), {"map"})
        values = evaluator.evaluate(pytrec_eval.parse_run(run))
    result = metric.result()
    ours = dict(zip(map(str, result.query.tolist()), result.ap.tolist(), strict=True))
    assert ours == pytest.approx({query: value["map"] for query, value in values.items()}, abs=1e-12)


def test_what_judgments_cannot_say(tmp_path):
    paths: tuple[Path, Path] = (tmp_path / "run", tmp_path / "qrels")
    metric = RetrievalMAP()
    metric.update(torch.rand(2, 3), torch.ones(2, 3).long())
    with pytest.raises(ValueError, match="to_trec needs rows"):
        metric.to_trec(*paths)
    metric = RetrievalMAP()
    batch = rows(0, ids=True)
    metric.update(**batch, num_relevant=torch.full((400,), 50))
    with pytest.raises(ValueError, match="to_trec cannot state `num_relevant`"):
        metric.to_trec(*paths)
    assert not any(path.exists() for path in paths)


# --- ranks ------------------------------------------------------------------------------------------------------------


def write_shard(folder: str) -> bool:
    """Every second image, every second row; the last images on both ranks."""
    rank = dist.get_rank()
    preds, target = scene(0, "all")
    detection, retrieval = DetectionMAP(), RetrievalMAP()
    detection.update(preds[rank::2], target[rank::2])
    detection.update(preds[-2:], target[-2:])
    retrieval.update(**{name: column[rank::2] for name, column in rows(0, ids=True).items()})
    detection.to_coco(f"{folder}/coco")
    retrieval.to_trec(f"{folder}/run", f"{folder}/qrels")
    detection.save(f"{folder}/state")
    return detection._is_synced or retrieval._is_synced


def test_the_first_rank_writes_the_rows_of_all(tmp_path, two_ranks):
    assert two_ranks.run(write_shard, str(tmp_path)) == [False, False]
    detection, retrieval = DetectionMAP(), RetrievalMAP()
    detection.update(*scene(0, "all"))
    retrieval.update(**rows(0, ids=True))
    detection.to_coco(tmp_path / "here")
    retrieval.to_trec(tmp_path / "here" / "run", tmp_path / "here" / "qrels")
    loaded = DetectionMAP()
    loaded.load(tmp_path / "state")
    assert_same(loaded.compute(), detection.compute())
    for name in ("coco/ground_truth.json", "coco/detections.json", "run", "qrels"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "here" / Path(name).name).read_bytes(), name
