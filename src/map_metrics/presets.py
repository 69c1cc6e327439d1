"""Conventions of known tools and benchmarks, as keyword arguments: ``RetrievalMAP(**presets.TREC)``.

Each is a plain dict: copy and change it as you like. What a preset cannot say (which items are junk, which grades are
relevant) is in its comment.
"""

from typing import Any

# trec_eval `map` (and pytrec_eval, ranx): all relevant items in the denominator, queries without any count 0. Its order
# of equal scores is by document name, descending: pass ids that sort so.
TREC: dict[str, Any] = {"denominator": "relevant", "ties": "stable", "empty_target_action": "neg"}

# Kaggle's MAP@K (`ml_metrics.apk`), sentence-transformers, Google Landmarks (k = 100): add `top_k`.
KAGGLE: dict[str, Any] = {"denominator": "min", "ties": "stable", "empty_target_action": "neg"}

# `CalcTopMap` of the deep-hashing ports (DPSH, HashNet, CSQ, ...): add `top_k`; the papers' 5000 or 54000.
HASHING: dict[str, Any] = {"denominator": "hits", "ties": "expected", "empty_target_action": "neg"}

# torchmetrics' RetrievalMAP (1.9), on scores above 0: it takes others as not retrieved.
TORCHMETRICS: dict[str, Any] = {"denominator": "hits", "ties": "stable", "empty_target_action": "neg"}

# Market-1501's MATLAB evaluation: trapezoids; queries without a match count 0. Junk (same person and camera, id -1) by
# `ignore_index`.
MARKET1501: dict[str, Any] = {"interpolation": "trapezoid", "ties": "stable", "empty_target_action": "neg"}

# torchreid, fast-reid: precision at the hits; queries without a match are left out. Junk (same person and camera) by
# `ignore_index`; id -1 is a distractor.
TORCHREID: dict[str, Any] = {"denominator": "relevant", "ties": "stable", "empty_target_action": "skip"}

# Revisited Oxford and Paris: trapezoids; queries without positives are left out. Junk (easy / hard, by protocol) by
# `ignore_index`.
REVISITED_OXFORD: dict[str, Any] = {"interpolation": "trapezoid", "ties": "stable", "empty_target_action": "skip"}

# MAP@R (Musgrave et al., 2020; pytorch-metric-learning): each query's list ends at its own number of relevant items.
MAP_AT_R: dict[str, Any] = {"top_k": "R", "denominator": "relevant", "ties": "stable", "empty_target_action": "skip"}
