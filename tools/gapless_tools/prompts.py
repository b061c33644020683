"""Questions about scenes and their answers: the tasks that the model learns and is measured on."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from .scenes import Box, Item, Scene
from .vocabulary import COLOURS, FOREIGN, KINDS

SHAPE_NOUNS = ("shape", "object")
COLOUR_WORDS = ("colour", "color")


@dataclass
class Task:
    """One request and what should come back. Boxes are normalised to the image, ordered left to right."""

    skill: str  # query, caption, point, detect or segment
    argument: str  # question, caption length, or object
    category: str  # what is measured, such as "count" or "absent"
    answer: str = ""
    boxes: list[Box] = field(default_factory=list)
    needs_image: bool = True
    # Of a question: what it is about, in words and as boxes from left to right.
    about: tuple[str, list[Box]] | None = None
    reasons: bool = False  # the question is answered after pointing at what it is about
    outlined: Item | None = None  # of segment
    upright: bool = False  # of segment: its path is that of the upright shape


def plural(noun: str) -> str:
    if noun.endswith("cross"):
        return noun + "es"
    return noun + "s"


def article(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def joined(parts: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def phrase_of(item: Item) -> str:
    """How captions name an item."""
    if item.kind in ("word", "number"):
        return f'the {item.kind} "{item.text}"'
    return article(f"{item.colour} {item.kind}")


def shapes_of(scene: Scene) -> list[Item]:
    return [item for item in scene.items if item.kind in KINDS]


def bars_of(scene: Scene) -> list[Item]:
    return [item for item in scene.items if item.kind == "bar"]


# ---- objects of point and detect ----


def matches(item: Item, colour: str | None, noun: str) -> bool:
    if colour is not None and item.colour != colour:
        return False
    if noun in SHAPE_NOUNS:
        return item.kind in KINDS
    return item.kind == noun


def find_items(scene: Scene, colour: str | None, noun: str) -> list[Item]:
    return [item for item in scene.items if matches(item, colour, noun)]


def boxes_of(scene: Scene, items: list[Item]) -> list[Box]:
    return [scene.normalized_box(item) for item in items]


def named(colour: str | None, noun: str) -> str:
    return noun if colour is None else f"{colour} {noun}"


def present_object(rng: random.Random, scene: Scene) -> tuple[str | None, str] | None:
    """A colour (or none) and a noun that something in the scene matches."""
    if not scene.items:
        return None
    item = rng.choice(scene.items)
    nouns = [item.kind]
    if item.kind in KINDS and rng.random() < 0.22:
        nouns = list(SHAPE_NOUNS)
    return (item.colour if rng.random() < 0.55 else None), rng.choice(nouns)


def absent_object(rng: random.Random, scene: Scene) -> tuple[str | None, str]:
    """A colour (or none) and a noun that nothing in the scene matches; often a near miss."""
    while True:
        roll = rng.random()
        if roll < 0.5 and scene.items:  # a colour and a kind that are there, or one of the two
            noun = rng.choice(scene.items).kind if rng.random() < 0.7 else rng.choice(KINDS)
            colour = rng.choice(scene.items).colour if rng.random() < 0.6 else rng.choice(list(COLOURS))
        elif roll < 0.75:
            colour, noun = None, rng.choice(KINDS + ("word", "number", "bar"))
        elif roll < 0.85:
            colour, noun = rng.choice(list(COLOURS)), rng.choice(SHAPE_NOUNS)
        else:
            colour, noun = (rng.choice(list(COLOURS)) if rng.random() < 0.2 else None), rng.choice(FOREIGN)
        if not find_items(scene, colour, noun):
            return colour, noun


def spoken(rng: random.Random, phrase: str) -> str:
    """The same object as different people type it."""
    roll = rng.random()
    if roll < 0.68:
        return phrase
    if roll < 0.82:
        return plural(phrase)
    if roll < 0.90:
        return "the " + phrase
    if roll < 0.95:
        return phrase.capitalize()
    return "all " + plural(phrase)


def region_task(rng: random.Random, scene: Scene, skill: str, absent: bool, plain: bool = False) -> Task:
    target = None if absent else present_object(rng, scene)
    category = "present"
    if target is None:
        target, category = absent_object(rng, scene), "absent"
    phrase = named(*target)
    boxes = boxes_of(scene, find_items(scene, *target))
    return Task(skill, phrase if plain else spoken(rng, phrase), category, boxes=boxes)


def segment_task(rng: random.Random, scene: Scene) -> Task | None:
    """The outline of a shape or bar; of several that fit, the first from the left."""
    candidates = [item for item in scene.items if item.outline]
    if not candidates:
        return None
    item = rng.choice(candidates)
    noun = rng.choice(SHAPE_NOUNS) if item.kind in KINDS and rng.random() < 0.15 else item.kind
    colour = item.colour if rng.random() < 0.7 else None
    found = find_items(scene, colour, noun)[0]
    phrase = named(colour, noun)
    roll = rng.random()
    spoken_phrase = phrase if roll < 0.75 else "the " + phrase if roll < 0.9 else phrase.capitalize()
    return Task("segment", spoken_phrase, "segment", boxes=boxes_of(scene, [found]), outlined=found)


def hollow_segment_task(rng: random.Random, scene: Scene) -> Task | None:
    """The same of a hollow shape, if one is found in a few draws."""
    task = segment_task(rng, scene)
    if any(item.hollow for item in scene.items):
        for _ in range(8):
            if task.outlined.hollow:
                break
            task = segment_task(rng, scene)
    return task


# ---- questions ----


def colour_task(rng: random.Random, scene: Scene) -> Task | None:
    word = rng.choice(COLOUR_WORDS)
    forms = [
        f"What {word} is the {{}}?",
        f"what {word} is the {{}}",
        f"Which {word} is the {{}}?",
        f"What is the {word} of the {{}}?",
    ]
    if rng.random() < 0.1:
        missing = [kind for kind in KINDS if not find_items(scene, None, kind)]
        if missing:
            kind = rng.choice(missing)
            question = rng.choice(forms).format(kind)
            return Task("query", question, "absent_query", f"There is no {kind}.", about=(kind, []))
    candidates = []
    for kind in sorted({item.kind for item in scene.items} - {"bar"}):
        found = {item.colour for item in scene.items if item.kind == kind}
        if len(found) == 1:
            candidates.append((kind, found.pop()))
    if not candidates:
        return None
    kind, colour = rng.choice(candidates)
    about = (kind, boxes_of(scene, find_items(scene, None, kind)))
    return Task("query", rng.choice(forms).format(kind), "colour", colour, about=about)


def shape_task(rng: random.Random, scene: Scene) -> Task | None:
    by_colour: dict[str, set[str]] = {}
    for item in shapes_of(scene):
        by_colour.setdefault(item.colour, set()).add(item.kind)
    candidates = [(colour, kinds.copy().pop()) for colour, kinds in sorted(by_colour.items()) if len(kinds) == 1]
    if not candidates:
        return None
    colour, kind = rng.choice(candidates)
    forms = [
        "What shape is the {} thing?",
        "What shape is the {} object?",
        "What is the {} shape?",
        "what shape is {}?",
    ]
    about = (f"{colour} shape", boxes_of(scene, find_items(scene, colour, "shape")))
    return Task("query", rng.choice(forms).format(colour), "shape", kind, about=about)


def count_task(rng: random.Random, scene: Scene) -> Task | None:
    if scene.is_chart:
        colour, noun = (None, "bar") if rng.random() < 0.8 else absent_object(rng, scene)
    elif rng.random() < 0.3 and shapes_of(scene):
        colour, noun = None, rng.choice(SHAPE_NOUNS)
    elif rng.random() < 0.12:
        colour, noun = absent_object(rng, scene)
    else:
        shapes = shapes_of(scene)
        if not shapes:
            return None
        item = rng.choice(shapes)
        colour = item.colour if rng.random() < 0.5 else None
        noun = rng.choice(SHAPE_NOUNS) if colour is not None and rng.random() < 0.4 else item.kind
    forms = [
        "How many {} are there?",
        "how many {} are there",
        "How many {} are in the picture?",
        "How many {} do you see?",
        "Count the {}.",
    ]
    found = find_items(scene, colour, noun)
    counted = plural(named(colour, noun))
    about = (counted, boxes_of(scene, found))
    return Task("query", rng.choice(forms).format(counted), "count", str(len(found)), about=about)


def read_task(rng: random.Random, scene: Scene) -> Task | None:
    candidates = []
    for kind in ("word", "number"):
        found = find_items(scene, None, kind)
        if len(found) == 1:
            candidates.append((kind, found[0].text))
    if not candidates:
        return None
    kind, text = rng.choice(candidates)
    forms = [
        "What {} is printed?",
        "Read the {}.",
        "What does the {} say?",
        "What {} is in the picture?",
        "What is the {}?",
    ]
    if len(candidates) == 1 and len([item for item in scene.items if item.text]) == 1:
        forms += ["What does it say?", "Read the text.", "What is written?"]
    about = (kind, boxes_of(scene, find_items(scene, None, kind)))
    return Task("query", rng.choice(forms).format(kind), "read", text, about=about)


def exists_task(rng: random.Random, scene: Scene) -> Task:
    target = present_object(rng, scene) if rng.random() < 0.5 else None
    answer = "no" if target is None else "yes"
    target = target or absent_object(rng, scene)
    phrase = named(*target)
    about = (phrase, boxes_of(scene, find_items(scene, *target)))
    forms = ["Is there {}?", "is there {}", "Is there {} in the picture?", "Do you see {}?", "Can you see {}?"]
    return Task("query", rng.choice(forms).format(article(phrase)), "exists", answer, about=about)


def chart_task(rng: random.Random, scene: Scene) -> Task | None:
    bars = bars_of(scene)
    if not bars:
        return None
    by_height = sorted(bars, key=lambda bar: bar.box[3] - bar.box[1])
    highest = rng.random() < 0.65
    bar = by_height[-1] if highest else by_height[0]
    adjectives = ["highest", "tallest"] if highest else ["lowest", "shortest"]
    word = rng.choice(COLOUR_WORDS)
    if scene.labelled and rng.random() < 0.6:
        forms = ["Which bar is {}?", "Which bar is the {}?", "which bar is {}", "What is the label of the {} bar?"]
        answer = bar.text
    else:
        forms = [f"What {word} is the {{}} bar?", f"Which {word} is the {{}} bar?"]
        if not scene.labelled:
            forms += ["Which bar is {}?", "Which bar is the {}?"]
        answer = bar.colour
    form, adjective = rng.choice(forms), rng.choice(adjectives)
    return Task("query", form.format(adjective), "chart", answer, about=(f"{adjective} bar", boxes_of(scene, [bar])))


TALK = (
    (
        ("What can you do?", "what can you do", "Help", "help"),
        "I find, count, read and describe coloured shapes, words, numbers and bar charts.",
    ),
    (("Who are you?", "What are you?", "who are you"), "I am a tiny model that looks at pictures of shapes."),
    (("Hello", "Hello!", "Hi", "hi"), "Hello! Show me a picture."),
)
NO_PICTURE = "I see no picture."


def talk_task(rng: random.Random, scene: Scene) -> Task:
    """A question without an image."""
    if rng.random() < 0.5:
        questions, answer = rng.choice(TALK)
        return Task("query", rng.choice(questions), "talk", answer, needs_image=False)
    other = count_task(rng, scene) or exists_task(rng, scene)
    return Task("query", other.argument, "talk", NO_PICTURE, needs_image=False)


# ---- captions ----


def place_name(scene: Scene, item: Item) -> str:
    x, y = item.centre[0] / scene.width, item.centre[1] / scene.height
    row = "top" if y < 0.36 else "bottom" if y > 0.64 else ""
    col = "left" if x < 0.36 else "right" if x > 0.64 else ""
    return f"{row} {col}".strip() or "centre"


def summary_of(scene: Scene) -> str:
    """The items counted by sort: "2 red circles, a blue star"."""
    shapes, texts = shapes_of(scene), [item for item in scene.items if item.text]
    counts = Counter((item.colour, item.kind) for item in shapes)
    parts = [article(f"{c} {k}") if n == 1 else f"{n} {c} {plural(k)}" for (c, k), n in counts.items()]
    return joined(parts + [phrase_of(item) for item in texts])


def caption_of(scene: Scene, length: str) -> str:
    items = scene.items
    if not items:
        return f"An empty picture with a {scene.background} background."
    if scene.is_chart:
        by_height = sorted(items, key=lambda bar: bar.box[3] - bar.box[1])
        start = f"A bar chart with {len(items)} bars"
        colours = joined([bar.colour for bar in items])
        if length == "short":
            return start + "."
        text = f"{start}: {colours}. The {by_height[-1].colour} bar is the highest"
        if length == "normal":
            return text + "."
        text += f" and the {by_height[0].colour} bar is the lowest."
        if scene.labelled:
            text += f" The labels are {joined([bar.text for bar in items])}."
        return f"{text} The background is {scene.background}."
    if length == "short":
        shapes = shapes_of(scene)
        if len(items) > 3 and shapes:
            return f"A picture of {len(shapes)} {'shape' if len(shapes) == 1 else 'shapes'}" + (
                " and text." if len(shapes) < len(items) else "."
            )
        sentence = joined([phrase_of(item) for item in items])
        return sentence[0].upper() + sentence[1:] + "."
    if length == "normal":
        return f"The picture shows {summary_of(scene)}."
    listed = joined([f"{phrase_of(item)} at the {place_name(scene, item)}" for item in items])
    return f"From left to right the picture shows {listed}. The background is {scene.background}."


def caption_task(rng: random.Random, scene: Scene) -> Task:
    length = rng.choices(["short", "normal", "long"], [0.35, 0.4, 0.25])[0]
    return Task("caption", length, "caption", caption_of(scene, length))


def question_task(rng: random.Random, scene: Scene) -> Task:
    """One question that suits the scene."""
    if scene.is_chart:
        makers, weights = [chart_task, count_task, exists_task], [0.6, 0.2, 0.2]
    else:
        makers = [colour_task, shape_task, count_task, read_task, exists_task]
        weights = [0.2, 0.13, 0.3, 0.17, 0.2]
    while True:
        task = rng.choices(makers, weights)[0](rng, scene)
        if task is not None:
            return task


def training_tasks(rng: random.Random, scene: Scene, count: int) -> list[Task]:
    """`count` tasks of all skills."""
    tasks = []
    for _ in range(count):
        roll = rng.random()
        if roll < 0.36:
            tasks.append(region_task(rng, scene, "detect", absent=rng.random() < 0.25))
        elif roll < 0.50:
            tasks.append(region_task(rng, scene, "point", absent=rng.random() < 0.25))
        elif roll < 0.90:
            tasks.append(question_task(rng, scene))
        elif roll < 0.985:
            tasks.append(caption_task(rng, scene))
        else:
            tasks.append(talk_task(rng, scene))
    return tasks


def reasoned(task: Task) -> Task:
    return replace(task, reasons=True)


@dataclass(frozen=True)
class Shares:
    """Of all tasks, those that only models with these skills have."""

    segment: float = 0.24
    reasoned: float = 0.15
    upright: bool = False  # paths are those of upright shapes: one for each kind
    hollow: float = 0.0  # of the outlines: a hollow shape's where there is one, which is seldom


def training_tasks_with_segments(rng: random.Random, scene: Scene, count: int, shares: Shares) -> list[Task]:
    """The same for a model that outlines and reasons too. Three fifths of what it reasons about is counting."""
    tasks = []
    for _ in range(count):
        roll = rng.random()
        if roll < shares.segment:
            outline = hollow_segment_task(rng, scene) if rng.random() < shares.hollow else segment_task(rng, scene)
            other = outline or region_task(rng, scene, "detect", absent=False)
            tasks.append(replace(other, upright=shares.upright and outline is not None))
        elif roll < shares.segment + 0.6 * shares.reasoned:
            tasks.append(reasoned(count_task(rng, scene) or question_task(rng, scene)))
        elif roll < shares.segment + shares.reasoned:
            tasks.append(reasoned(question_task(rng, scene)))
        else:
            tasks += training_tasks(rng, scene, 1)
    return tasks
