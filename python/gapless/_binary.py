"""The program that is in the wheel."""

from __future__ import annotations

import os
import sys
from glob import escape as glob_escape
from glob import glob
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


def cuda_library_folders() -> list[str]:
    """Of NVIDIA's packages in this Python: a binary with the CUDA backend needs cuBLASLt, which is no part of the driver."""
    found = (glob(os.path.join(glob_escape(folder), "nvidia", "*", "lib", "libcublasLt.so.*")) for folder in sys.path if folder)
    return list(dict.fromkeys(os.path.dirname(library) for libraries in found for library in libraries))


def environment() -> dict[str, str]:
    """For the program: ours, where certificates are, and where CUDA's libraries are."""
    variables = dict(os.environ)
    if folders := cuda_library_folders():
        # Behind those that somebody has chosen.
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [variables.get("LD_LIBRARY_PATH"), *folders]))
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
