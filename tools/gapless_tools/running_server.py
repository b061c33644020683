"""A `gapless serve` that a benchmark starts for itself."""

import contextlib
import re
import subprocess
import threading


@contextlib.contextmanager
def running_server(command, guard_seconds=300):
    """Starts the command (a list of words) and gives its address once it is ready; SystemExit if it ends before that. Ends it with
    SIGTERM. What it logs meanwhile is read and thrown away: a full pipe would hold it up."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        url = None
        for line in server.stderr:
            url = url or (re.search(r"listening url=(\S+)", line) or [None, None])[1]
            if " ready model=" in line:
                break
        else:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
        yield url
    finally:
        server.terminate()
        server.wait(guard_seconds)
