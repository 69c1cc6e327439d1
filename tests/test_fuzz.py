"""A short run of ``fuzz``, the same in every run; and what longer ones found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fuzz import GOOD, KINDS, OUTCOMES, check, fuzzed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tally import held

EXAMPLES = 100


@pytest.mark.parametrize("name", KINDS)
def test_every_batch_is_the_oracles_value_or_a_refusal(name):
    OUTCOMES.clear()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        fuzzed(name, data)

    run()
    assert OUTCOMES["taken, equal to the oracle"] > EXAMPLES / 5
    assert OUTCOMES["refused"] > EXAMPLES / 8
    held("inputs tried: the oracle's value, or a refusal that names the place", sum(OUTCOMES.values()))


# --- finds ------------------------------------------------------------------------------------------------------------

METADATA = [(kind, key) for kind, batch in GOOD.items() for key, value in batch.items() if hasattr(value, "shape")]


@pytest.mark.parametrize(("kind", "key"), METADATA)
def test_a_tensor_without_values_is_refused(kind, key):
    assert check(kind, {}, GOOD[kind] | {key: GOOD[kind][key].to("meta")}) == "refused"


@pytest.mark.parametrize("key", ["boxes", "scores", "labels", "image_id", "iscrowd", "area", "pos_category_ids"])
def test_an_image_without_values_is_refused(key):
    side = "preds" if key == "scores" else "target"
    value: Any = GOOD["detection"][side][0].get(key, torch.ones(1, dtype=torch.int64)).to("meta")
    batch = GOOD["detection"] | {side: [GOOD["detection"][side][0] | {key: value}]}
    assert check("detection", {}, batch) == "refused"


@pytest.mark.parametrize(("kind", "key"), [("rows", "preds"), ("matrix", "preds"), ("embedding", "embeddings")])
def test_a_lazily_negated_tensor_has_its_values(kind, key):
    """The imaginary part of a conjugate, for one."""
    batch = GOOD[kind] | {key: torch._neg_view(-GOOD[kind][key])}
    assert check(kind, {"similarity": "dot"} if kind == "embedding" else {}, batch) == "taken, equal to the oracle"
