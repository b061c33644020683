"""gapless: vision-language models, asked from Python.

    import gapless

    with gapless.vl() as model:
        print(model.query("shapes.png", "How many circles are there?")["answer"])

vl() starts the server that is in this package, or joins one; batch() answers many requests at once. docs/python.md in
the repository says more.
"""

from importlib.metadata import version as _version

from ._batch import batch
from ._images import EncodedImage, encode_image
from ._model import ChatStream, Model, SegmentStream, TextStream, vl
from .errors import BatchError, Error, RequestError, ServerError

__version__ = _version("gapless")

__all__ = [
    "BatchError", "ChatStream", "EncodedImage", "Error", "Model", "RequestError", "SegmentStream", "ServerError", "TextStream",
    "__version__", "batch", "encode_image", "vl",
]
