"""What goes wrong, by whose fault it is. A value of a wrong type or form is a TypeError or a ValueError."""

from __future__ import annotations


class Error(Exception):
    """All errors of this package."""


class ServerError(Error):
    """The server did not start, has ended, or cannot be reached. The message has the last lines of its log."""


class BatchError(Error):
    """A batch could not go on. The message has the last lines of its log; lines that were answered are kept."""


class RequestError(Error):
    """The server has refused a request or failed on it.

    `status` is the HTTP status; None: the error came in the middle of a stream. `code` and `param` (the field at
    fault) are those of docs/http_api.md.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
