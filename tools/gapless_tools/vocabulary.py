"""The closed world of the scenes: kinds, colours, words, and the classes of the dense training targets."""

from __future__ import annotations

KINDS = ("circle", "square", "triangle", "star", "hexagon", "diamond", "cross", "heart")

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 30, 34),
    "orange": (250, 138, 16),
    "yellow": (246, 222, 30),
    "green": (34, 152, 50),
    "cyan": (48, 208, 222),
    "blue": (32, 70, 212),
    "purple": (130, 40, 168),
    "pink": (250, 132, 190),
    "black": (18, 18, 20),
    "white": (250, 250, 250),
}

WORDS = (
    "lamp tree fish moon road sand wind rain snow fire rock leaf bird boat milk salt ring door wall roof "
    "bread apple lemon melon grape house chair table clock phone paper water light music stone river ocean "
    "cloud storm night sugar honey spoon plate glass knife brush shirt shoes socks gloves cap map pen key box "
    "cup jar bag net toy kite drum bell rope gold iron wood wool silk corn rice soup cake jam tea ice oil "
    "open stop exit push pull left right up down yes no go hot cold new old sale free bus taxi bank shop"
).split()

NUMBERS = tuple(str(n) for n in range(100))
LETTERS = tuple("ABCDEFGH")

# Things that never appear in a scene: asked for, they must not be found.
FOREIGN = (
    "person man woman child face hand dog cat horse cow sheep elephant car truck bicycle train plane "
    "flower mountain building window bottle banana pizza umbrella backpack book laptop keyboard "
    "pentagon octagon oval arrow spiral sun eye ball robot sign button logo"
).split()

DENSE_KINDS = KINDS + ("word", "number", "bar")
DENSE_TEXTS = tuple(WORDS) + NUMBERS + LETTERS

assert len(set(WORDS)) == len(WORDS)
