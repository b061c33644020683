"""How answers are scored. Boxes are x0, y0, x1, y1 and points x, y, both normalised to the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

IOU_THRESHOLD = 0.5


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / area


def num_matched(found: Sequence, truth: Sequence, fits: Callable[[Sequence[float], Sequence[float]], bool]) -> int:
    """Size of the largest one-to-one matching of `found` with `truth` (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(i: int, seen: set[int]) -> bool:
        for j, wanted in enumerate(truth):
            if j in seen or not fits(found[i], wanted):
                continue
            seen.add(j)
            if j not in owner or place(owner[j], seen):
                owner[j] = i
                return True
        return False

    return sum(place(i, set()) for i in range(len(found)))


def box_fits(found: Sequence[float], truth: Sequence[float]) -> bool:
    return iou(found, truth) >= IOU_THRESHOLD


def point_fits(found: Sequence[float], truth: Sequence[float]) -> bool:
    return truth[0] <= found[0] <= truth[2] and truth[1] <= found[1] <= truth[3]


def normalized_answer(text: str) -> str:
    return text.strip().rstrip(".").lower()


class Tally:
    """Counts of one category."""

    def __init__(self) -> None:
        self.requests = self.right = self.matched = self.found = self.wanted = 0
        self.covered = 0.0

    def add_regions(self, found: Sequence, truth: Sequence, fits: Callable) -> None:
        matched = num_matched(found, truth, fits)
        self.requests += 1
        self.right += matched == len(found) == len(truth)
        self.matched += matched
        self.found += len(found)
        self.wanted += len(truth)

    def add_answer(self, right: bool) -> None:
        self.requests += 1
        self.right += right

    def add_overlap(self, overlap: float) -> None:
        self.requests += 1
        self.covered += overlap

    @property
    def overlap(self) -> float:
        return self.covered / max(1, self.requests)

    @property
    def exact(self) -> float:
        return self.right / max(1, self.requests)

    @property
    def recall(self) -> float:
        return self.matched / max(1, self.wanted)

    @property
    def precision(self) -> float:
        return self.matched / max(1, self.found)

    @property
    def f1(self) -> float:
        return 2 * self.matched / max(1, self.found + self.wanted)
