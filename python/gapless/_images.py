"""Pictures as the server takes them."""

from __future__ import annotations

import base64
import os
import threading
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image

from .types import Picture, SupportsArray, SupportsImageUrl

_loading = threading.Lock()


@dataclass(frozen=True)
class EncodedImage:
    """A picture as text, to be asked about several times."""

    image_url: str


def image_file(image: Picture) -> bytes:
    """The picture as the bytes of a file.

    Files and bytes stay as they are. Pillow's pictures and arrays become JPEGs of quality 95, as in Moondream's own
    client, so that both get the same answers.
    """
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if isinstance(image, (str, os.PathLike)):
        with open(image, "rb") as file:
            return file.read()
    return _jpeg(_pillow_image(image))


def encode_image(image: Picture) -> EncodedImage:
    """`image`: a Pillow picture; an array of height x width (grey) or height x width x 3 (RGB) or 4 (RGBA) bytes; the
    bytes or the path of a JPEG, PNG, WebP or GIF; a `data:` URI; or what this function has returned.
    """
    if isinstance(image, EncodedImage):
        return image
    if isinstance(image, SupportsImageUrl):
        return EncodedImage(image.image_url)
    if isinstance(image, str) and image.startswith(("data:", "http://", "https://")):
        return EncodedImage(image)
    text = base64.b64encode(image_file(image)).decode("ascii")
    # The server tells formats by the bytes.
    return EncodedImage("data:image/jpeg;base64," + text)


def _pillow_image(image: Picture) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if not isinstance(image, SupportsArray):
        raise TypeError(f"image: {type(image).__name__} is neither a picture nor an array, bytes or a path")
    interface: dict[str, Any] = image.__array_interface__
    shape = tuple(interface["shape"])
    grey = len(shape) == 2
    if interface["typestr"] != "|u1" or not (grey or len(shape) == 3 and shape[2] in (3, 4)) or 0 in shape:
        raise ValueError(
            "image: an array must be of bytes (uint8), height x width or height x width x 3 or 4, not "
            f"{interface['typestr']} {' x '.join(map(str, shape))}")
    return Image.fromarray(image)


def _jpeg(image: Image.Image) -> bytes:
    file = BytesIO()
    try:
        # Of a file that Pillow has opened and not yet read, two threads may not do so at once.
        with _loading:
            image.load()
        (image if image.mode == "RGB" else image.convert("RGB")).save(file, format="JPEG", quality=95)
    except (OSError, ValueError) as error:
        raise ValueError(f"image: cannot be written as a JPEG: {error}") from error
    return file.getvalue()
