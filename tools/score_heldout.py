"""Scores responses to held-out items and prints the quality table.

    python tools/score_heldout.py --items heldout/items.jsonl --responses responses.jsonl

A line of responses.jsonl is the response object of the HTTP API and the item's id:
{"id", "answer"} or {"id", "caption"} or {"id", "objects": [{x_min, y_min, x_max, y_max}]} or {"id", "points": [{x, y}]} or
{"id", "path", "bbox": {x_min, y_min, x_max, y_max}}.
Exits with 1 when a target is missed, with 2 when an item has no response. --model names the folder of the model that
answered: models/tiny3 has a target of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.metrics import Tally, box_fits, iou, normalized_answer, point_fits  # noqa: E402
from gapless_tools.outlines import mask_iou  # noqa: E402

SIDES = ("x_min", "y_min", "x_max", "y_max")

# Row of the table: category, what is measured, target or None. A target may be another row: this one shall be no lower.
ROWS = (
    ("detect/present", "detect F1 at IoU 0.5", "f1", 0.90),
    ("point/present", "point hit rate (matched points / objects)", "recall", 0.93),
    ("point/present", "point precision (matched points / points)", "precision", None),
    ("query/count", "counting, exact", "exact", 0.90),
    ("query/count_reasoned", "counting with reasoning, exact", "exact", "query/count"),
    ("grounding/count_reasoned", "points of that reasoning (matched points / objects)", "recall", None),
    ("segment/segment", "segment, mean IoU of the path", "overlap", 0.80),
    ("box/segment", "segment, mean IoU of the box", "overlap", None),
    ("query/colour", "colour, exact", "exact", 0.90),
    ("detect/absent", "detect of absent objects, empty", "exact", 0.95),
    ("point/absent", "point at absent objects, empty", "exact", 0.95),
    ("query/shape", "shape, exact", "exact", None),
    ("query/read", "reading, exact", "exact", None),
    ("query/exists", "is there a ...?, exact", "exact", None),
    ("query/chart", "bar charts, exact", "exact", None),
    ("query/absent_query", "colour of something absent, exact", "exact", None),
    ("caption/caption", "caption, every word right", "exact", None),
)

TARGETS_OF = {"tiny3": {"detect/present": 0.95}}  # by the folder's name, instead of those of ROWS


def score(items: list[dict], responses: dict[str, dict]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = defaultdict(Tally)
    for item in items:
        response, skill = responses[item["id"]], item["skill"]
        tally = tallies[f"{skill}/{item['category']}"]
        if skill == "detect":
            boxes = [[one[side] for side in SIDES] for one in response["objects"]]
            tally.add_regions(boxes, item["truth"]["boxes"], box_fits)
        elif skill == "point":
            points = [(p["x"], p["y"]) for p in response["points"]]
            tally.add_regions(points, item["truth"]["boxes"], point_fits)
        elif skill == "segment":
            box, (true_box,) = [response["bbox"][side] for side in SIDES], item["truth"]["boxes"]
            tally.add_overlap(mask_iou(response["path"], box, item["truth"]["outlines"], true_box))
            tallies["box/segment"].add_overlap(iou(box, true_box))
        else:
            text = response["answer" if skill == "query" else "caption"]
            tally.add_answer(normalized_answer(text) == normalized_answer(item["truth"]["answer"]))
            if "reasoning" in response:
                points = [point for part in response["reasoning"]["grounding"] for point in part["points"]]
                tallies[f"grounding/{item['category']}"].add_regions(points, item["truth"]["boxes"], point_fits)
    return tallies


def print_table(tallies: dict[str, Tally], own_targets: dict[str, float] | None = None) -> bool:
    """Markdown; true when every target is met."""
    met = True
    print("| measured | requests | value | target |")
    print("|---|---|---|---|")
    for category, label, figure, target in ROWS:
        if category not in tallies:
            continue
        tally = tallies[category]
        value = getattr(tally, figure)
        target = (own_targets or {}).get(category, target)
        digits = 2
        if isinstance(target, str):
            target, digits = getattr(tallies[target], figure), 3
        met &= target is None or value >= target
        print(f"| {label} | {tally.requests} | {value:.3f} | {'' if target is None else f'{target:.{digits}f}'} |")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--responses", type=Path, required=True)
    parser.add_argument("--only", choices=["single", "tiled"], help="images with one local crop, or with several")
    parser.add_argument("--model", type=Path, help="folder of the model that answered")
    args = parser.parse_args()
    items = [json.loads(line) for line in args.items.read_text().splitlines()]
    if args.only:
        items = [item for item in items if (item["tiling"] == [1, 1]) == (args.only == "single")]
    responses = {r["id"]: r for r in map(json.loads, args.responses.read_text().splitlines())}
    missing = [item["id"] for item in items if item["id"] not in responses]
    if missing:
        print(f"{args.responses}: no response for {len(missing)} items, the first is {missing[0]}", file=sys.stderr)
        return 2
    own_targets = TARGETS_OF.get(args.model.name) if args.model else None
    return 0 if print_table(score(items, responses), own_targets) else 1


if __name__ == "__main__":
    sys.exit(main())
