"""The differences between paper and released code are all of them, and the plan is the paper's."""

from __future__ import annotations

from itertools import pairwise

import pytest

from concf.models import PRESETS, choose_settings
from reproduction.plan import EXPERIMENTS, cells_of, choose_reference
from reproduction.variants import PAPER_ROWS, RELEASED_ROWS, SIDE_BY_SIDE, SIZES, VARIANTS

FOUR = {("citeulike", "released"), ("ciao", "released"), ("foursquare", "released"), ("ciao", "paper")}
CITEULIKE = {("citeulike", "released")}
CIAO_TOO = {("citeulike", "released"), ("ciao", "paper")}
SIZES_OF_PLAN = {  # experiment -> cells: variants x data x splits, and of other presets
    "stats": 5, "main": 2 * 4 * 5 + 2 * 2 * 5 * 2, "schemes": 3 * 4 * 5, "groups": 2 * 4 * 5, "per": 4 * 5,
    "consistency": 5, "homogeneous": 6 * 5, "distillation": 3 * 5, "selection": 5 * 5, "chr": 3 * 4 * 5,
    "hyperparameters": 14 * 5, "sharing": 4 * 5, "alone": 8 * 2 * 3, "differences": 23 * 3, "protocol": 2 * 5,
}  # fmt: skip


# Variants


@pytest.mark.parametrize(("preset", "rows"), [("paper", PAPER_ROWS), ("released", RELEASED_ROWS)])
def test_the_rows_together_are_the_preset_and_each_is_a_part_of_it(
    preset: str, rows: dict[str, tuple[str, ...]]
) -> None:
    """So the experiment `differences` leaves none out."""
    words = [word for row in rows.values() for word in row]
    assert choose_settings("reference", words=words) == PRESETS[preset]
    assert len({word.partition("=")[0] for word in words}) == len(words)
    for name, row in rows.items():
        for word in row:
            assert choose_settings("reference", words=[word]) != PRESETS["reference"], (name, word)
        assert VARIANTS[f"{preset}: {name}"] == row


def test_every_variant_is_valid_under_the_presets_it_is_planned_for() -> None:
    planned = {(cell.variant, cell.preset) for cell in cells_of(["all"])}
    assert {variant for variant, _ in planned} == {*VARIANTS}
    for variant, preset in planned:
        chosen = choose_settings(preset, words=VARIANTS[variant])
        assert (chosen == PRESETS[preset]) == (not VARIANTS[variant]), variant
        if variant == "distillation":
            choose_settings(preset, words=SIDE_BY_SIDE)
        if variant == "model sizes":
            assert [choose_reference(preset, [f"model.dimensions={size}"]).model.dimensions for size in SIZES]


# The plan


def test_the_plan_has_the_paper_s_experiments_on_their_data() -> None:
    assert {name: len(cells_of([name])) for name in EXPERIMENTS} == SIZES_OF_PLAN
    for name in EXPERIMENTS:
        cells = cells_of([name])
        datasets = {(cell.data, cell.protocol) for cell in cells}
        of = {"stats": FOUR | {("citeulike", "paper")}, "alone": CIAO_TOO, "protocol": {("citeulike", "paper")}}
        everywhere = FOUR if name in ("main", "schemes", "groups", "per", "chr") else CITEULIKE
        assert datasets == of.get(name, everywhere)
        assert {cell.seed for cell in cells} == {*range({"stats": 1, "alone": 3, "differences": 3}.get(name, 5))}
        assert {cell.preset for cell in cells} == ({*PRESETS} - {"strong"} if name == "main" else {"reference"})
        assert {(c.data, c.protocol) for c in cells if c.preset != "reference"} <= CIAO_TOO


def test_all_is_everything_once_with_the_reference_first() -> None:
    cells = cells_of(["all"])
    assert len(cells) == len({*cells}) == 388
    assert {*cells} == {cell for name in EXPERIMENTS for cell in cells_of([name])}
    assert cells_of([*EXPERIMENTS]) == cells
    assert cells_of(["per", "all"]) == cells
    reference = [cell.preset == "reference" for cell in cells]
    assert all(earlier >= later for earlier, later in pairwise(reference))
