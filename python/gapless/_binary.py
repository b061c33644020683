"""The program that is in the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from .errors import ServerError

# Where distributions keep the certificates of authorities. The TLS library in the wheel was built on one of them and
# looks there only.
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def path() -> str:
    """GAPLESS_BINARY, or the binary of the wheel."""
    named = os.environ.get("GAPLESS_BINARY")
    binary = Path(named) if named else Path(__file__).parent / "_installed/bin/gapless"
    if not os.access(binary, os.X_OK) or binary.is_dir():
        raise ServerError(f"{binary} is not a program" + (" (GAPLESS_BINARY)" if named else ""))
    return str(binary)


def environment() -> dict[str, str]:
    """For the program: ours, and where certificates are."""
    variables = dict(os.environ)
    if "SSL_CERT_FILE" not in variables and "SSL_CERT_DIR" not in variables:
        found = next((name for name in _CERTIFICATES if os.path.exists(name)), None)
        if found:
            variables["SSL_CERT_FILE"] = found
    return variables


def main() -> NoReturn:
    """The command `gapless`: becomes the program."""
    try:
        binary = path()
    except ServerError as error:
        sys.exit(f"gapless: {error}")
    os.execve(binary, ["gapless", *sys.argv[1:]], environment())
