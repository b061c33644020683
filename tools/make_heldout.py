"""Writes held-out images and questions: items.jsonl and images/ in the folder given.

    python tools/make_heldout.py --seed 90001 --num-images 300 --out heldout
    python tools/make_heldout.py --seed 90001 --num-images 300 --out heldout --model models/tiny3

The second one adds what the model has besides: outlines, and each question that counts again with reasoning. A line of
items.jsonl is a request of `gapless batch` (id, image, skill, and question, object or length) with what the scorer needs
besides: category, truth (answer, boxes normalised to the image, outlines in their box) and tiling. A seed used for training
(2026, 3001, 4001, 5001 to 5003) must not be used here.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import MoondreamConfig, VisionConfig, load_config  # noqa: E402
from gapless_tools.outlines import true_outlines  # noqa: E402
from gapless_tools.prompts import (  # noqa: E402
    Task,
    caption_task,
    chart_task,
    colour_task,
    count_task,
    exists_task,
    read_task,
    reasoned,
    region_task,
    segment_task,
    shape_task,
)
from gapless_tools.scenes import Scene, make_scene  # noqa: E402
from gapless_tools.tiling import tiling_of_image  # noqa: E402

ARGUMENT_FIELD = {"query": "question", "detect": "object", "point": "object", "segment": "object", "caption": "length"}
TILED_SHARE = 5  # every fifth image has several local crops


def heldout_tasks(rng: random.Random, scene: Scene) -> list[Task]:
    """Detect, point and absent objects for every image, and each kind of question that the scene allows, once."""
    tasks: list[Task | None] = []
    if scene.items:
        tasks += [region_task(rng, scene, "detect", absent=False) for _ in range(2)]
        tasks.append(region_task(rng, scene, "point", absent=False))
    tasks += [region_task(rng, scene, skill, absent=True) for skill in ("detect", "point")]
    makers = [colour_task, shape_task, count_task, read_task, exists_task, chart_task, caption_task]
    tasks += [maker(rng, scene) for maker in makers]
    return [task for task in tasks if task is not None]


def further_tasks(rng: random.Random, scene: Scene, tasks: list[Task], config: MoondreamConfig) -> list[Task]:
    """What models have that the others have not. Of two outlines the second one may be the first again."""
    further: list[Task | None] = []
    if config.outlines:
        further += [segment_task(rng, scene), segment_task(rng, scene)]
    if config.reasons:
        further += [reasoned(task) for task in tasks if task.category == "count"]
    return [task for task in further if task is not None]


def truth_of(task: Task) -> dict:
    if task.skill == "segment":
        return {"boxes": task.boxes, "outlines": true_outlines(task.outlined)}
    if task.skill in ("detect", "point"):
        return {"boxes": task.boxes}
    return {"answer": task.answer} | ({"boxes": task.about[1]} if task.reasons else {})


def item_of(task: Task, image_name: str, size: tuple[int, int]) -> dict:
    item = {
        "image": f"images/{image_name}",
        "skill": task.skill,
        ARGUMENT_FIELD[task.skill]: task.argument,
        "category": task.category,
        "tiling": tiling_of_image(*size, VisionConfig()),
        "truth": truth_of(task),
    }
    return item | ({"reasoning": True, "category": task.category + "_reasoned"} if task.reasons else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num-images", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="folder with the config.json of the model that is asked")
    args = parser.parse_args()
    config = load_config(args.model) if args.model else MoondreamConfig()
    (args.out / "images").mkdir(parents=True, exist_ok=True)
    num_items = 0
    with (args.out / "items.jsonl").open("w") as lines:
        for index in range(args.num_images):
            image, scene = make_scene(args.seed, index, tiled=index % TILED_SHARE == TILED_SHARE - 1)
            name = f"{index:05d}.png"
            image.save(args.out / "images" / name)
            tasks = heldout_tasks(random.Random(f"heldout/{args.seed}/{index}"), scene)
            tasks += further_tasks(random.Random(f"further/{args.seed}/{index}"), scene, tasks, config)
            for i, task in enumerate(tasks):
                lines.write(json.dumps({"id": f"{index:05d}-{i}"} | item_of(task, name, image.size)) + "\n")
                num_items += 1
    print(f"{args.out}: {args.num_images} images, {num_items} items")


if __name__ == "__main__":
    main()
