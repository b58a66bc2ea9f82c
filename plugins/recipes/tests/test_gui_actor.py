"""GUI-Actor: patches of a box, regions of an attention, and the choice among candidates, by hand."""

import pytest

from dart_recipes.gui_actor.patches import (
    Grid,
    choose_point,
    contains,
    find_regions,
    label_patches,
    propose_points,
)
from dart_streams.config import load, tasks
from dart_streams.config.recipes import recipe_folder
from workers.env.backends.miniwob.oracle import NEXT

SQUARE = Grid(columns=2, rows=2, width=56, height=56)
"""Four patches of 28 pixels."""


@pytest.mark.parametrize(
    ("box", "labels"),
    [
        ((5, 5, 20, 50), [True, False, True, False]),
        ((20, 20, 40, 40), [True] * 4),
        ((28, 0, 56, 28), [False, True, False, False]),  # edges that only touch are no overlap
        ((30, 30, 30, 30), [False, False, False, True]),  # no area
    ],
)
def test_patches_that_overlap_the_box_are_positive(box, labels):
    assert label_patches(SQUARE, box) == labels


def test_adjacent_patches_are_a_region_with_its_weighted_center():
    [column] = find_regions(SQUARE, [0.3, 0.05, 0.6, 0.05])
    assert column.patches == (0, 2) and column.score == pytest.approx(0.45)
    assert column.point == pytest.approx((14, (0.3 * 14 + 0.6 * 42) / 0.9))


def test_diagonal_patches_are_two_regions_the_better_one_first():
    regions = find_regions(SQUARE, [0.3, 0.1, 0.1, 0.5])
    assert [(region.patches, region.point) for region in regions] == [((3,), (42, 42)), ((0,), (14, 14))]


def test_a_region_has_patches_above_the_threshold_only():
    assert [region.patches for region in find_regions(SQUARE, [0.1, 0.3, 0.2, 0.4], threshold=0.5)] == [(1, 3)]
    assert [region.patches for region in find_regions(SQUARE, [0.1, 0.3, 0.2, 0.4], threshold=0.0)] == [(0, 1, 2, 3)]


def test_candidates_are_regions_then_their_patches():
    assert propose_points(SQUARE, [0.25, 0.0, 0.75, 0.0]) == [(14, 35), (14, 42), (14, 14)]
    assert propose_points(SQUARE, [0.3, 0.1, 0.1, 0.5]) == [(42, 42), (14, 14)], "a lone patch is named once"
    screen = Grid(columns=10, rows=10, width=280, height=280)
    assert len(propose_points(screen, [0.01] * 100)) == 20


def test_the_verifier_takes_the_first_accepted_candidate_or_the_likeliest():
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    assert choose_point(points, {points[0]: 0.4, points[1]: 0.85, points[2]: 0.99}.__getitem__, 0.8) == points[1]
    assert choose_point(points, {points[0]: 0.4, points[1]: 0.3, points[2]: 0.5}.__getitem__, 0.8) == points[2]


def test_a_point_on_the_edge_is_in_the_box():
    assert contains((0, 0, 28, 28), (28, 14)) and not contains((0, 0, 28, 28), (28.1, 14))
    assert SQUARE.patch_at((28, 14)) == 1 and SQUARE.patch_at((99, -1)) == 1


def test_the_measured_pages_have_an_oracle():
    folder = recipe_folder("gui-actor")
    known = tasks.load(folder / load(folder / "clicks.toml").tasks.file)
    assert {page.page for page in known.pages} <= NEXT.keys()
    assert (len(known.demonstration), len(known.heldout)) == (840, 560)
