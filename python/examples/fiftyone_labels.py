"""Labels the pictures of a FiftyOne dataset: boxes of an object, and a caption.

    pip install gapless fiftyone
    python fiftyone_labels.py PICTURES OBJECT       then look at them in FiftyOne's app
"""

import sys

import fiftyone
import gapless


def label(dataset: "fiftyone.Dataset", model: gapless.Model, name: str) -> None:
    for sample in dataset.iter_samples(progress=True, autosave=True):
        picture = model.encode_image(sample.filepath)
        boxes = model.detect(picture, name)["objects"]
        # FiftyOne's boxes are [left, top, width, height], in shares of the picture too.
        sample["objects"] = fiftyone.Detections(detections=[
            fiftyone.Detection(label=name, bounding_box=[
                box["x_min"], box["y_min"], box["x_max"] - box["x_min"], box["y_max"] - box["y_min"]])
            for box in boxes])
        sample["caption"] = model.caption(picture, length="short")["caption"].strip()


def main(folder: str, name: str) -> None:
    dataset = fiftyone.Dataset.from_images_dir(folder)
    with gapless.vl() as model:
        label(dataset, model, name)
    fiftyone.launch_app(dataset).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
