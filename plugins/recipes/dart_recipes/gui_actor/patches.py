"""Patches of a screen: those of a target, and the regions and points that an attention over them proposes. Pure.

Patches are numbered row by row. Places are in pixels of the screen.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge."""
THRESHOLD = 0.3
"""Share of the largest attention that a patch of a region exceeds."""
MOST = 20
"""Largest number of candidates."""


class Grid(NamedTuple):
    """A screen of ``width`` x ``height`` pixels, cut into patches."""

    columns: int
    rows: int
    width: int
    height: int

    def center(self, patch: int) -> Point:
        """Return the center of a patch."""
        row, column = divmod(patch, self.columns)
        return (column + 0.5) * self.width / self.columns, (row + 0.5) * self.height / self.rows

    def patch_at(self, point: Point) -> int:
        """Return the patch at a point; the nearest one if it is outside."""
        column = min(max(int(point[0] * self.columns / self.width), 0), self.columns - 1)
        row = min(max(int(point[1] * self.rows / self.height), 0), self.rows - 1)
        return row * self.columns + column


class Region(NamedTuple):
    """Adjacent patches; ``score`` is the mean of their attention, ``point`` their center weighted by it."""

    patches: tuple[int, ...]
    score: float
    point: Point


def contains(box: Box, point: Point) -> bool:
    """Return whether a point is in a box."""
    left, top, right, bottom = box
    return left <= point[0] <= right and top <= point[1] <= bottom


def label_patches(grid: Grid, box: Box) -> list[bool]:
    """Return, for each patch, whether it overlaps a box; the patch at the center of a box without area does."""
    left, top, right, bottom = box
    wide, high = grid.width / grid.columns, grid.height / grid.rows
    labels = [
        max(left, column * wide) < min(right, (column + 1) * wide)
        and max(top, row * high) < min(bottom, (row + 1) * high)
        for row in range(grid.rows)
        for column in range(grid.columns)
    ]
    if not any(labels):
        labels[grid.patch_at(((left + right) / 2, (top + bottom) / 2))] = True
    return labels


def find_regions(grid: Grid, attention: Sequence[float], threshold: float = THRESHOLD) -> list[Region]:
    """Return the regions of patches with more than ``threshold`` of the largest attention, best first."""
    left = {patch for patch, value in enumerate(attention) if value > threshold * max(attention)}
    regions = []
    while left:
        found, waiting = [], [min(left)]
        left.remove(waiting[0])
        while waiting:
            found.append(patch := waiting.pop())
            near = adjacent_patches(grid, patch) & left
            left -= near
            waiting += sorted(near)
        total = sum(attention[patch] for patch in found)
        x, y = (sum(attention[patch] / total * grid.center(patch)[axis] for patch in found) for axis in (0, 1))
        regions.append(Region(tuple(sorted(found)), total / len(found), (x, y)))
    return sorted(regions, key=lambda region: (-region.score, region.patches))


def adjacent_patches(grid: Grid, patch: int) -> set[int]:
    """Return the patches above, below, left and right of one."""
    row, column = divmod(patch, grid.columns)
    places = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    return {y * grid.columns + x for y, x in places if 0 <= y < grid.rows and 0 <= x < grid.columns}


def propose_points(grid: Grid, attention: Sequence[float], threshold: float = THRESHOLD) -> list[Point]:
    """Return candidates: the points of regions, best first, then the centers of their patches by attention."""
    regions = find_regions(grid, attention, threshold)
    inner = sorted((patch for region in regions for patch in region.patches), key=lambda patch: -attention[patch])
    return list(dict.fromkeys([region.point for region in regions] + [grid.center(patch) for patch in inner]))[:MOST]


def choose_point(points: Sequence[Point], probability: Callable[[Point], float], accepted: float) -> Point:
    """Return the first point with at least the ``accepted`` probability; if there is none, the likeliest."""
    best, highest = points[0], -1.0
    for point in points:
        value = probability(point)
        if value >= accepted:
            return point
        if value > highest:
            best, highest = point, value
    return best
