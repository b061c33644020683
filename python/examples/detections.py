"""Boxes as supervision's Detections, for its annotators, trackers and metrics.

    pip install gapless supervision
    python detections.py PICTURE OBJECT OUT.png
"""

import sys

import gapless
import supervision
from PIL import Image


def detect(model: gapless.Model, picture: Image.Image, name: str) -> supervision.Detections:
    found = model.detect(picture, name)
    return supervision.Detections.from_vlm(supervision.VLM.MOONDREAM, found, resolution_wh=picture.size)


def main(path: str, name: str, out: str) -> None:
    picture = Image.open(path).convert("RGB")
    with gapless.vl() as model:
        detections = detect(model, picture, name)
    for x_min, y_min, x_max, y_max in detections.xyxy:
        print(f"{x_min:.1f} {y_min:.1f} {x_max:.1f} {y_max:.1f}")
    supervision.BoxAnnotator(color_lookup=supervision.ColorLookup.INDEX).annotate(picture, detections).save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
