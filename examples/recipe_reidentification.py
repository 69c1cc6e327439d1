"""Person re-identification: mAP and rank-1 as Market-1501's own evaluation and as torchreid report them.

    python examples/recipe_reidentification.py

Both take one distance matrix, person ids and cameras, and remove junk before ranking: images of the right person from
the query's own camera are too easy to count. They differ in three points. Market-1501 also removes bad detections
(person id -1), which torchreid's evaluation leaves in as distractors (its Market-1501 loader drops the files); it takes
trapezoids under the precision-recall curve, torchreid the precision at each hit; and it counts a query without any
match as 0, where torchreid leaves it out.

Sources: Zheng et al., "Scalable Person Re-identification: A Benchmark", ICCV 2015, and its MATLAB evaluation;
torchreid's `eval_market1501`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from map_metrics import RetrievalMAP, presets

DATA = Path(__file__).parent / "data" / "reid_synthetic.npz"
JUNK = -1  # the target of an item that leaves the ranking: neither a hit nor a miss


def judge(data: dict[str, np.ndarray], bad_detections_are_junk: bool) -> Tensor:
    """(queries, gallery): 1 the same person from another camera, 0 another person, -1 junk."""
    same_person = data["q_pid"][:, None] == data["g_pid"]
    junk = same_person & (data["q_cam"][:, None] == data["g_cam"])
    if bad_detections_are_junk:
        junk |= data["g_pid"] == -1
    return torch.from_numpy(np.where(junk, JUNK, same_person))


def evaluate(distance: Tensor, target: Tensor, preset: dict, **changes: str) -> tuple[float, float]:
    """The mAP and the rank-1 accuracy, over the queries that the preset counts."""
    metric = RetrievalMAP(**{**preset, **changes}, ignore_index=JUNK, largest=False)  # a small distance is a good one
    metric.update(distance, target)
    result = metric.result()
    counted = ~result.ap.isnan()  # the AP of a query that is left out is NaN
    return float(result.value()), float(result.precision_at(1)[counted].mean())


def main() -> dict[str, float]:
    with np.load(DATA) as file:
        data = dict(file)
    distance = torch.from_numpy(data["dist"])
    clean, noisy = judge(data, bad_detections_are_junk=True), judge(data, bad_detections_are_junk=False)
    rows = {
        "Market-1501, official": evaluate(distance, clean, presets.MARKET1501),
        "torchreid, id -1 left in": evaluate(distance, noisy, presets.TORCHREID),
        "torchreid, id -1 removed": evaluate(distance, clean, presets.TORCHREID),
        "the same, ties in expectation": evaluate(distance, clean, presets.TORCHREID, ties="expected"),
    }
    print(f"{'':<30} {'mAP':>8} {'rank-1':>8}")
    for name, (value, first) in rows.items():
        print(f"{name:<30} {value:8.6f} {first:8.6f}")
    return {f"{name}: {of}": row[i] for name, row in rows.items() for i, of in enumerate(("mAP", "rank-1"))}


if __name__ == "__main__":
    main()
