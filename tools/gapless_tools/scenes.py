"""Draws scenes: coloured shapes, printed words and numbers, bar charts. Scene (seed, index) is always the same.

Everything that a question can be asked about is an `Item` with a box in pixels. A scene's items are ordered from left
to right by the centre of their boxes: the order in which the model lists them.
"""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .vocabulary import COLOURS, KINDS, LETTERS, NUMBERS, WORDS

Box = tuple[float, float, float, float]
Colour = tuple[int, int, int]

CROP = 378
MIN_OBJECT = 32 / CROP  # smallest object side, as a part of the longer image side
MIN_TEXT = 28 / CROP
MAX_OVERLAP = 0.12  # intersection over the smaller box
SUPERSAMPLE = 3
HOLE = 0.62  # of a hollow shape: its outline in small, about the middle of the box
CORNERS = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


@dataclass
class Item:
    kind: str  # one of KINDS, or "word", "number", "bar"
    colour: str
    box: Box  # x0, y0, x1, y1 in pixels
    text: str = ""  # what a word or number reads, or the label under a bar
    # A shape's or bar's vertices, clockwise, in its box: (0, 0) is the top left corner, (1, 1) the bottom right one.
    outline: list[tuple[float, float]] = field(default_factory=list)
    hollow: bool = False  # the inner HOLE of it is background
    turn: float = 0.0  # of a shape, in radians, clockwise

    @property
    def centre(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


@dataclass
class Scene:
    width: int
    height: int
    background: str  # "plain", "gradient" or "noisy"
    is_chart: bool = False
    labelled: bool = False  # the bars of a chart have labels
    items: list[Item] = field(default_factory=list)

    def normalized_box(self, item: Item) -> Box:
        x0, y0, x1, y1 = item.box
        return x0 / self.width, y0 / self.height, x1 / self.width, y1 / self.height


@lru_cache(maxsize=256)
def font_of(size: int) -> ImageFont.FreeTypeFont:
    """The font that ships with Pillow."""
    return ImageFont.load_default(size)


def colour_distance(a: Colour, b: Colour) -> float:
    return math.dist(a, b)


# ---- image sizes ----


def single_crop_size(rng: random.Random) -> tuple[int, int]:
    """A width and height with the cheap 1x1 tiling (shorter side at most 378)."""
    roll = rng.random()
    if roll < 0.45:
        return CROP, CROP
    if roll < 0.55:
        side = rng.randint(96, 220)
        return side, round(side * rng.uniform(0.75, 1.33))
    if roll < 0.95:
        short = rng.randint(200, 378)
        long = min(round(short * rng.uniform(1.0, 1.8)), 640)
    else:
        short = rng.randint(160, 300)
        long = round(short * rng.uniform(1.8, 3.2))
    return (long, short) if rng.random() < 0.6 else (short, long)


def tiled_size(rng: random.Random) -> tuple[int, int]:
    """A width and height whose tiling has several local crops."""
    roll = rng.random()
    if roll < 0.55:
        width, height = rng.choice([(640, 480), (800, 600), (1024, 768), (500, 500), (720, 480), (960, 540)])
        return (width, height) if rng.random() < 0.65 else (height, width)
    if roll < 0.92:
        short = rng.randint(380, 800)
        long = round(short * rng.uniform(1.0, 1.9))
    else:
        short = rng.randint(380, 460)
        long = round(short * rng.uniform(2.0, 3.0))
    return (long, short) if rng.random() < 0.6 else (short, long)


# ---- backgrounds ----


def background_colour(rng: random.Random) -> Colour:
    """Mostly pale or dark, sometimes a muted colour."""
    roll = rng.random()
    if roll < 0.45:
        low, high = 200, 255
    elif roll < 0.7:
        low, high = 0, 60
    else:
        low, high = 70, 185
    grey = rng.uniform(low, high)
    spread = 25 if roll < 0.7 else 45
    return tuple(int(min(255, max(0, grey + rng.uniform(-spread, spread)))) for _ in range(3))


def draw_background(rng: random.Random, width: int, height: int) -> tuple[Image.Image, str, list[Colour]]:
    """The canvas, the background's name, and the colours that objects must stand out from."""
    first = background_colour(rng)
    style = rng.choices(["plain", "gradient", "noisy"], [0.45, 0.3, 0.25])[0]
    if style == "gradient":
        second = tuple(int(min(255, max(0, c + rng.uniform(-70, 70)))) for c in first)
        ramp = Image.linear_gradient("L").rotate(rng.choice([0, 90, 180, 270])).resize((width, height))
        image = Image.composite(
            Image.new("RGB", (width, height), first), Image.new("RGB", (width, height), second), ramp
        )
        middle = tuple((a + b) // 2 for a, b in zip(first, second))
        return image, style, [first, middle, second]
    image = Image.new("RGB", (width, height), first)
    if style == "noisy":
        noise = np.random.default_rng(rng.getrandbits(32))
        amplitude = rng.randint(6, 28)
        grain = noise.integers(-amplitude, amplitude + 1, size=(height, width, 1), dtype=np.int16)
        image = Image.fromarray(np.clip(np.asarray(image).astype(np.int16) + grain, 0, 255).astype(np.uint8))
    return image, style, [first]


def visible_colours(backgrounds: list[Colour]) -> list[str]:
    """Colours that stand out from every background colour; never fewer than three."""
    nearest = {name: min(colour_distance(rgb, b) for b in backgrounds) for name, rgb in COLOURS.items()}
    good = [name for name in COLOURS if nearest[name] > 105]
    return good if len(good) >= 3 else sorted(COLOURS, key=lambda name: -nearest[name])[:3]


def jittered(rng: random.Random, colour: str) -> Colour:
    return tuple(min(255, max(0, c + rng.randint(-14, 14))) for c in COLOURS[colour])


def draw_distractors(rng: random.Random, image: Image.Image) -> None:
    """Thin lines and dots, too small to be taken for objects."""
    draw = ImageDraw.Draw(image)
    thin = max(1, round(max(image.size) / CROP * 0.8))
    for _ in range(rng.randint(0, 4)):
        ends = [(rng.uniform(0, image.width), rng.uniform(0, image.height)) for _ in range(2)]
        draw.line(ends, fill=background_colour(rng), width=thin)
    for _ in range(rng.randint(0, 12)):
        x, y, r = rng.uniform(0, image.width), rng.uniform(0, image.height), thin * rng.uniform(1.0, 2.0)
        draw.ellipse([x - r, y - r, x + r, y + r], fill=background_colour(rng))


# ---- shapes ----


def shape_outline(kind: str) -> list[tuple[float, float]]:
    """Vertices of a shape about the origin."""

    def ring(n: int, radius: float, phase: float) -> list[tuple[float, float]]:
        return [
            (radius * math.cos(phase + 2 * math.pi * i / n), radius * math.sin(phase + 2 * math.pi * i / n))
            for i in range(n)
        ]

    if kind == "circle":
        return ring(48, 1.0, 0.0)
    if kind == "square":
        return [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    if kind == "triangle":
        return [(0, -1), (1, 0.8), (-1, 0.8)]
    if kind == "star":
        outer, inner = ring(5, 1.0, -math.pi / 2), ring(5, 0.42, -math.pi / 2 + math.pi / 5)
        return [p for pair in zip(outer, inner) for p in pair]
    if kind == "hexagon":
        return ring(6, 1.0, 0.0)
    if kind == "diamond":
        return [(0, -1), (0.66, 0), (0, 1), (-0.66, 0)]
    if kind == "cross":
        a = 0.34
        return [
            (-a, -1),
            (a, -1),
            (a, -a),
            (1, -a),
            (1, a),
            (a, a),
            (a, 1),
            (-a, 1),
            (-a, a),
            (-1, a),
            (-1, -a),
            (-a, -a),
        ]
    if kind == "heart":
        angles = [2 * math.pi * i / 40 for i in range(40)]
        return [
            (
                math.sin(t) ** 3,
                -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16,
            )
            for t in angles
        ]
    raise ValueError(f"no such kind of shape: {kind}")


def shape_polygon(rng: random.Random, kind: str, side: float) -> tuple[list[tuple[float, float]], float]:
    """Vertices with the longer side of their box equal to `side` and the box's corner at the origin; and the turn, in radians."""
    points = shape_outline(kind)
    stretch_x, stretch_y = rng.uniform(0.9, 1.1), rng.uniform(0.9, 1.1)
    limit = {"circle": 0.0, "hexagon": 0.5, "diamond": 0.12}.get(kind, 0.22)
    angle = rng.uniform(-limit, limit)
    cos, sin = math.cos(angle), math.sin(angle)
    points = [(stretch_x * (x * cos - y * sin), stretch_y * (x * sin + y * cos)) for x, y in points]
    x0, y0 = min(x for x, _ in points), min(y for _, y in points)
    extent = max(max(x for x, _ in points) - x0, max(y for _, y in points) - y0)
    return [((x - x0) * side / extent, (y - y0) * side / extent) for x, y in points], angle


def polygon_size(points: list[tuple[float, float]]) -> tuple[float, float]:
    return max(x for x, _ in points), max(y for _, y in points)


def draw_polygon(
    image: Image.Image, points: list[tuple[float, float]], x: float, y: float, rgb: Colour, hollow: bool
) -> None:
    """Pastes a smooth-edged polygon whose box's corner is at (x, y)."""
    width, height = polygon_size(points)
    left, top = math.floor(x), math.floor(y)
    columns, rows = math.ceil(x + width) - left + 1, math.ceil(y + height) - top + 1
    mask = Image.new("L", (columns * SUPERSAMPLE, rows * SUPERSAMPLE))
    draw = ImageDraw.Draw(mask)

    def place(scale: float) -> list[tuple[float, float]]:
        cx, cy = width / 2, height / 2
        return [
            (
                (x - left + cx + (px - cx) * scale) * SUPERSAMPLE,
                (y - top + cy + (py - cy) * scale) * SUPERSAMPLE,
            )
            for px, py in points
        ]

    draw.polygon(place(1.0), fill=255)
    if hollow:
        draw.polygon(place(HOLE), fill=0)
    image.paste(rgb, (left, top), mask.reduce(SUPERSAMPLE))


# ---- placing ----


def overlap_of(a: Box, b: Box) -> float:
    """Intersection area over the area of the smaller box."""
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    return w * h / min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))


def find_place(
    rng: random.Random, scene: Scene, width: float, height: float, allowed: float
) -> tuple[float, float] | None:
    """A corner at which a width x height box overlaps no item by more than `allowed`."""
    if width > scene.width - 4 or height > scene.height - 4:
        return None
    for _ in range(25):
        x, y = rng.uniform(2, scene.width - width - 2), rng.uniform(2, scene.height - height - 2)
        box = (x, y, x + width, y + height)
        limits = [0.0 if item.text else allowed for item in scene.items]
        if all(overlap_of(box, item.box) <= limit for item, limit in zip(scene.items, limits)):
            return x, y
    return None


def add_shape(rng: random.Random, scene: Scene, image: Image.Image, kind: str, colour: str, largest: float) -> None:
    longer, shorter = max(scene.width, scene.height), min(scene.width, scene.height)
    low = MIN_OBJECT * longer
    high = max(low, min(largest * longer, 0.6 * shorter))
    side = math.exp(rng.uniform(math.log(low), math.log(high)))
    points, turn = shape_polygon(rng, kind, side)
    width, height = polygon_size(points)
    place = find_place(rng, scene, width, height, MAX_OVERLAP)
    if place is None:
        return
    hollow = side > 44 / CROP * longer and rng.random() < 0.2
    draw_polygon(image, points, *place, jittered(rng, colour), hollow)
    box = (place[0], place[1], place[0] + width, place[1] + height)
    outline = [(x / width, y / height) for x, y in points]
    scene.items.append(Item(kind, colour, box, outline=outline, hollow=hollow, turn=turn))


def add_text(rng: random.Random, scene: Scene, image: Image.Image, colours: list[str], largest: float) -> None:
    longer, shorter = max(scene.width, scene.height), min(scene.width, scene.height)
    text = rng.choice(WORDS) if rng.random() < 0.6 else rng.choice(NUMBERS)
    kind = "number" if text.isdigit() else "word"
    # Capitals are about 0.7 of the font's size.
    low = MIN_TEXT * longer
    size = round(math.exp(rng.uniform(math.log(low), math.log(max(low, min(largest * longer, 0.4 * shorter))))))
    font = font_of(size)
    shown = text.upper() if kind == "word" and rng.random() < 0.3 else text
    x0, y0, x1, y1 = font.getbbox(shown)
    place = find_place(rng, scene, x1 - x0, y1 - y0, 0.0)
    if place is None:
        return
    left, top = round(place[0]), round(place[1])
    colour = rng.choice(colours)
    ImageDraw.Draw(image).text((left - x0, top - y0), shown, fill=jittered(rng, colour), font=font)
    scene.items.append(Item(kind, colour, (left, top, left + x1 - x0, top + y1 - y0), text))


# ---- kinds of scenes ----


def draw_shapes(rng: random.Random, scene: Scene, image: Image.Image, colours: list[str]) -> None:
    """0 to 8 items; a small palette and few kinds, so that combinations repeat and near misses exist."""
    if rng.random() < 0.7:
        draw_distractors(rng, image)
    num_texts = rng.choices([0, 1, 2], [0.68, 0.24, 0.08])[0]
    num_shapes = rng.choices(range(9), [2, 8, 14, 17, 17, 16, 13, 8, 5])[0]
    num_shapes = min(num_shapes, 8 - num_texts)
    largest = 0.42 if num_shapes <= 3 else 0.3 if num_shapes <= 5 else 0.22
    palette = rng.sample(colours, min(len(colours), rng.choice([2, 3, 4, 6])))
    kinds = rng.sample(KINDS, rng.choice([1, 2, 3, 4, 6, 8]))
    for _ in range(num_texts):
        add_text(rng, scene, image, colours, 0.16)
    for _ in range(num_shapes):
        add_shape(rng, scene, image, rng.choice(kinds), rng.choice(palette), largest)


def draw_signs(rng: random.Random, scene: Scene, image: Image.Image, colours: list[str]) -> None:
    """One or two printed words or numbers, larger than in a scene of shapes."""
    if rng.random() < 0.4:
        draw_distractors(rng, image)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        add_text(rng, scene, image, colours, 0.24)


def draw_chart(rng: random.Random, scene: Scene, image: Image.Image, colours: list[str]) -> None:
    """3 to 6 bars on a base line, all colours different, the highest and the lowest bar clearly so."""
    scene.is_chart = True
    longest = min(6, len(colours))
    num_bars = rng.randint(min(3, longest), longest)
    bar_colours = rng.sample(colours, num_bars)
    left, right = rng.uniform(0.06, 0.14) * scene.width, rng.uniform(0.88, 0.95) * scene.width
    top, base = rng.uniform(0.06, 0.14) * scene.height, rng.uniform(0.82, 0.88) * scene.height
    pitch = (right - left) / num_bars
    bar_width = pitch * rng.uniform(0.55, 0.8)
    for _ in range(50):
        heights = sorted(rng.uniform(0.12, 1.0) for _ in range(num_bars))
        if heights[-1] - heights[-2] > 0.09 and heights[1] - heights[0] > 0.09:
            break
    else:
        heights = [0.15 + 0.85 * i / (num_bars - 1) for i in range(num_bars)]
    rng.shuffle(heights)
    scene.labelled = rng.random() < 0.55 and min(scene.width, scene.height) > 0.45 * max(scene.width, scene.height)
    font = font_of(round(26 / CROP * scene.height))
    labels = LETTERS[:num_bars]
    if scene.labelled and rng.random() < 0.4:
        fitting = [word for word in WORDS if len(word) <= 4 and font.getlength(word) < 0.95 * pitch]
        if len(fitting) >= num_bars:
            labels = tuple(rng.sample(fitting, num_bars))
    draw = ImageDraw.Draw(image)
    ink = jittered(rng, rng.choice(colours))
    thin = max(1, round(scene.height / CROP * 1.5))
    draw.line([(left - 0.02 * scene.width, base), (right, base)], fill=ink, width=thin)
    if rng.random() < 0.6:
        draw.line([(left - 0.02 * scene.width, top), (left - 0.02 * scene.width, base)], fill=ink, width=thin)
    for i in range(num_bars):
        x0 = left + pitch * i + (pitch - bar_width) / 2
        y0 = base - heights[i] * (base - top)
        box = tuple(round(v) for v in (x0, y0, x0 + bar_width, base))
        draw.rectangle([box[0], box[1], box[2] - 1, box[3] - 1], fill=jittered(rng, bar_colours[i]))
        label = labels[i] if scene.labelled else ""
        if label:
            width = font.getlength(label)
            draw.text(((box[0] + box[2] - width) / 2, base + 0.012 * scene.height), label, fill=ink, font=font)
        scene.items.append(Item("bar", bar_colours[i], box, label, outline=list(CORNERS)))


def compressed(rng: random.Random, image: Image.Image) -> Image.Image:
    """The image after a JPEG round trip."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=rng.randint(60, 95))
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


def make_scene(seed: int, index: int, tiled: bool = False) -> tuple[Image.Image, Scene]:
    """Scene `index` of stream `seed`; `tiled` asks for an image size with several local crops."""
    rng = random.Random(f"{seed}/{index}/{tiled}")
    width, height = tiled_size(rng) if tiled else single_crop_size(rng)
    image, style, backgrounds = draw_background(rng, width, height)
    scene = Scene(width, height, style)
    colours = visible_colours(backgrounds)
    roll = rng.random()
    if roll < 0.69 or (roll >= 0.86 and len(colours) < 4):
        draw_shapes(rng, scene, image, colours)
    elif roll < 0.86:
        draw_signs(rng, scene, image, colours)
    else:
        draw_chart(rng, scene, image, colours)
    if rng.random() < 0.35:
        image = compressed(rng, image)
    scene.items.sort(key=lambda item: item.centre)
    return image, scene
