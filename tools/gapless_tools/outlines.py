"""Outlines as SVG path data: what segment answers, and how well a path covers a shape.

A path is in units of its box: (0, 0) is the box's top left corner, (1, 1) the bottom right one. As tokens its numbers are
whole multiples of PATH_STEP up to PATH_UNITS, each a token of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from PIL import Image, ImageChops, ImageDraw

from .scenes import CORNERS, HOLE, Box, Item, shape_outline

PATH_UNITS = 960
PATH_STEP = 6
PATH_NUMBERS = range(0, PATH_UNITS + 1, PATH_STEP)

NUMBERS_OF = {"M": 2, "L": 2, "T": 2, "H": 1, "V": 1, "S": 4, "Q": 4, "C": 6, "A": 7, "Z": 0}
RADII, FLAGS = (0, 1), (3, 4)  # of an arc's numbers

Point = tuple[float, float]

# Of the many vertices of round shapes, those that a path keeps: of a heart fewer where it is nearly straight.
_KEPT = {"circle": range(0, 48, 4), "heart": (0, 3, 5, 7, 9, 11, 13, 16, 20, 24, 27, 29, 31, 33, 35, 37)}


# ---- paths of shapes ----


def _units(value: float) -> int:
    return min(PATH_UNITS, max(0, PATH_STEP * round(value * PATH_UNITS / PATH_STEP)))


def _polygon(vertices: Sequence[Point]) -> list[str | int]:
    """A command for each vertex, though one would do for all: so what a number is shows in the tokens next to it."""
    path: list[str | int] = []
    for x, y in vertices:
        path += ["L" if path else "M", _units(x), _units(y)]
    return [*path, "Z"]


def path_of(item: Item) -> list[str | int]:
    """Commands and numbers. A hole is a second outline that turns the other way round."""
    vertices = [item.outline[i] for i in _KEPT[item.kind]] if item.kind in _KEPT else item.outline
    path = _polygon(vertices)
    if item.hollow:
        path += _polygon([(0.5 + HOLE * (x - 0.5), 0.5 + HOLE * (y - 0.5)) for x, y in reversed(vertices)])
    return path


# From which vertex an upright outline goes on, so that each kind's path begins in a place of its own.
_BEGINS_AT = {"circle": 2, "triangle": 2, "diamond": 1, "hexagon": 1}


def upright(item: Item) -> Item:
    """The same with the outline of its kind as it is without turning and stretching, and without a hole."""
    points = CORNERS if item.kind == "bar" else shape_outline(item.kind)
    x0, y0 = min(x for x, _ in points), min(y for _, y in points)
    width, height = max(x for x, _ in points) - x0, max(y for _, y in points) - y0
    outline = [((x - x0) / width, (y - y0) / height) for x, y in points]
    begin = _BEGINS_AT.get(item.kind, 0)
    return replace(item, outline=outline[begin:] + outline[:begin], hollow=False)


def path_text(parts: Sequence[str]) -> str:
    """Path tokens as path data in units of the box. What is behind the last whole command is no part of it."""
    path: list[str] = []
    command, numbers, sign = "", [], 1

    def end_command() -> None:
        wanted = NUMBERS_OF.get(command.upper(), 0)
        used = len(numbers) - len(numbers) % wanted if wanted else 0
        if command and (used > 0 or wanted == 0):
            path.append(command)
            for i, number in enumerate(numbers[:used]):
                is_length = command.upper() != "A" or i % wanted not in (2, *FLAGS)
                path.append(f"{number / PATH_UNITS:.3f}".rstrip("0").rstrip(".") if is_length else str(number))

    for part in parts:
        if part == "-":
            sign = -1
        elif part.isdigit():
            numbers.append(sign * int(part))
            sign = 1
        else:
            end_command()
            command, numbers, sign = part, [], 1
    end_command()
    return " ".join("0" if part == "-0" else part for part in path)


# ---- paths as polygons ----


def _arc(start: Point, numbers: Sequence[float], end: Point) -> list[Point]:
    """SVG 1.1, appendix F.6: from the end points to the centre; points on the way, the end included."""
    rx, ry, degrees, large, sweep = abs(numbers[0]), abs(numbers[1]), *numbers[2:5]
    if rx == 0 or ry == 0 or start == end:
        return [end]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    dx, dy = (start[0] - end[0]) / 2, (start[1] - end[1]) / 2
    x, y = cos * dx + sin * dy, cos * dy - sin * dx
    grown = math.sqrt(max(1.0, (x / rx) ** 2 + (y / ry) ** 2))
    rx, ry = rx * grown, ry * grown
    square = (rx * ry) ** 2 / ((rx * y) ** 2 + (ry * x) ** 2) - 1
    factor = math.sqrt(max(0.0, square)) * (1 if bool(large) != bool(sweep) else -1)
    cx, cy = factor * rx * y / ry, -factor * ry * x / rx
    middle = (cos * cx - sin * cy + (start[0] + end[0]) / 2, sin * cx + cos * cy + (start[1] + end[1]) / 2)
    first = math.atan2((y - cy) / ry, (x - cx) / rx)
    turn = math.atan2((-y - cy) / ry, (-x - cx) / rx) - first
    turn = turn % (2 * math.pi) if sweep else turn % (2 * math.pi) - 2 * math.pi
    points = []
    for i in range(1, 25):
        angle = first + turn * i / 24
        u, v = rx * math.cos(angle), ry * math.sin(angle)
        points.append((middle[0] + cos * u - sin * v, middle[1] + sin * u + cos * v))
    return points


def _bezier(controls: Sequence[Point]) -> list[Point]:
    """The curve from the first control point to the last, without the first."""
    points = []
    for i in range(1, 17):
        t, level = i / 16, list(controls)
        while len(level) > 1:
            level = [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])) for a, b in zip(level, level[1:])]
        points.append(level[0])
    return points


def polygons_of(path: str) -> list[list[Point]]:
    """SVG path data with blanks between its parts, curves as lines."""
    polygons: list[list[Point]] = []
    at, begin, control, before = (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), ""
    for letter, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        command, numbers = letter.upper(), [float(number) for number in rest.split()]
        count = NUMBERS_OF[command]
        for i in range(0, max(len(numbers), 1), max(count, 1)):
            values = numbers[i : i + count]
            if command == "Z":
                at = begin
                continue
            base = at if letter.islower() else (0.0, 0.0)
            if command in "HV":
                moved = values[0] + base[command == "V"]
                points = [(moved, at[1]) if command == "H" else (at[0], moved)]
            elif command == "A":
                end = (base[0] + values[5], base[1] + values[6])
                points = _arc(at, values, end)
            else:
                given = [(base[0] + x, base[1] + y) for x, y in zip(values[::2], values[1::2])]
                if command in "ST":
                    smooth = before in ("CS" if command == "S" else "QT")
                    given.insert(0, (2 * at[0] - control[0], 2 * at[1] - control[1]) if smooth else at)
                points = given if command in "ML" else _bezier([at, *given])
                control = given[-2] if command in "CSQT" else at
            if command == "M" and i == 0:
                begin = points[0]
                polygons.append([])
            elif not polygons or before == "Z":
                polygons.append([at])
            polygons[-1] += points
            at, before = points[-1], command
        before = command
    return [polygon for polygon in polygons if len(polygon) > 2]


# ---- how much of a shape a path covers ----

GRID = 384  # side of the pictures that are compared


def _place(polygons: Sequence[Sequence[Point]], box: Box, view: Box) -> Image.Image:
    """Polygons in units of `box`, inside where an odd number of them are."""
    mask = Image.new("1", (GRID, GRID))
    x0, y0, x1, y1 = box
    for polygon in polygons:
        one = Image.new("1", (GRID, GRID))
        places = [
            (
                (x0 + x * (x1 - x0) - view[0]) / (view[2] - view[0]) * GRID - 0.5,
                (y0 + y * (y1 - y0) - view[1]) / (view[3] - view[1]) * GRID - 0.5,
            )
            for x, y in polygon
        ]
        ImageDraw.Draw(one).polygon(places, fill=1)
        mask = ImageChops.logical_xor(mask, one)
    return mask


def mask_iou(path: str, box: Box, outlines: Sequence[Sequence[Point]], true_box: Box) -> float:
    """Intersection over union of what `path` in `box` fills and of what `outlines` in `true_box` do, as pixels."""
    found = polygons_of(path)
    if not found or box[2] <= box[0] or box[3] <= box[1]:
        return 0.0
    margin_x, margin_y = 0.05 * (true_box[2] - true_box[0]), 0.05 * (true_box[3] - true_box[1])
    view = (
        min(box[0], true_box[0]) - margin_x,
        min(box[1], true_box[1]) - margin_y,
        max(box[2], true_box[2]) + margin_x,
        max(box[3], true_box[3]) + margin_y,
    )
    a, b = _place(found, box, view), _place(outlines, true_box, view)
    either = ImageChops.logical_or(a, b).histogram()[255]
    return ImageChops.logical_and(a, b).histogram()[255] / either if either else 0.0


def true_outlines(item: Item) -> list[list[Point]]:
    """All vertices of what was drawn, and of its hole."""
    outlines = [list(item.outline)]
    if item.hollow:
        outlines.append([(0.5 + HOLE * (x - 0.5), 0.5 + HOLE * (y - 0.5)) for x, y in item.outline])
    return outlines
