#!/usr/bin/env python3
"""Two replicas of the shipped model behind Envoy and behind vllm-router: requests per second, and requests that a rolling
restart loses. Beside them one replica without a router.

    build/venv/bin/python bench/routers.py --binary build/cpu-release/apps/gapless --json bench/results/routers.json

The environment is that of tests/clients/run, which installs both routers. Requests per second: `gapless bench serve`,
--clients in a closed loop, questions about pictures that the replicas know after the warm-up, through the router. Lost
requests: four clients ask Moondream's query, OpenAI's chat and a stream of it by turns, while both replicas are ended with
SIGTERM and started again, one after the other (tests/clients/rolling_restart_test.py). The ways take turns, --repeats times,
and all repeats are in the result: where a way's repeats lie apart as far as the ways do, there is no difference to read.
Routers, replicas and clients share the machine's cores: the figures compare ways, not machines.
"""

import argparse
import base64
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/clients")]


def load(binary, url, options):
    """Answers a second and their latency."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        subprocess.run([binary, "bench", "serve", "--url", url, "--max-tokens", "3", "--concurrency", str(options.clients), "--duration",
                        str(options.seconds), "--warm-up", "5", "--distinct-images", "8", "--image-size", "300x200", "--json", str(path)],
                       check=True, stdout=sys.stderr, timeout=600)
        [point] = json.loads(path.read_text())["points"]
    return {"clients": options.clients, "requests_per_s": point["requests_per_s"], "latency_ms": point["latency_ms"], "errors": point["errors"]}


def restart_all(start, replicas, router, client_class, picture):
    """Requests answered and lost while each replica is ended and started again."""
    clients = [client_class(router.url, picture) for _ in range(4)]
    for client in clients:
        client.start()
    for number, replica in enumerate(replicas):
        time.sleep(3)
        port = replica.port()
        replica.process.terminate()
        if replica.process.wait(240) != 0:
            raise SystemExit(replica.text())
        replicas[number] = start("--port", str(port))
        router.wait_for(lambda: router.num_ready() == len(replicas) or None)
    time.sleep(3)
    for client in clients:
        client.stopping = True
    for client in clients:
        client.join(240)
    return {"clients": len(clients), "restarts": len(replicas), "answered": sum(client.good for client in clients),
            "lost": sum(len(client.lost) for client in clients), "first_lost": next((lost for client in clients for lost in client.lost), None)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu-release/apps/gapless"))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="all ways in turns, so often; every one is in the result")
    parser.add_argument("--note", default="load generator, router and replicas shared the cores")
    parser.add_argument("--drain-lead", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--commit")
    options = parser.parse_args()
    os.environ["GAPLESS_BINARY"] = options.binary

    from gapless_tools import bench_result
    from rolling_restart_test import Client
    from routers import Envoy, VllmRouter
    from serving import PICTURE, Server

    def start(*words):
        return Server("--drain-lead", str(options.drain_lead), "--drain-seconds", "60", *words)

    def end(replicas):
        for replica in replicas:
            replica.process.kill()
            replica.process.wait()

    picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
    rows = []
    for repeat in range(options.repeats):
        alone = start()
        try:
            rows.append({"router": "none", "replicas": 1, "repeat": repeat, "load": load(options.binary, alone.url, options)})
        finally:
            end([alone])
        for name, kind in (("Envoy", Envoy), ("vllm-router", VllmRouter)):
            replicas = [start(), start()]
            router = kind([replica.port() for replica in replicas])
            try:
                rows.append({"router": name, "replicas": 2, "repeat": repeat, "load": load(options.binary, router.url, options),
                             "rolling_restart": restart_all(start, replicas, router, Client, picture)})
                print(json.dumps(rows[-1], indent=1), flush=True)
            finally:
                router.close()
                end(replicas)
    if options.json:
        cores = len(os.sched_getaffinity(0))
        bench_result.write(options.json, {
            **bench_result.header("models/tiny", "none", f"CPU, {cores} cores, {platform.machine()}", options.commit),
            "benchmark": "routers", "spread": "p50, p90 and p99 of the requests", "drain_lead_s": options.drain_lead, "note": options.note,
            "rows": rows})
    sys.exit(1 if any(row.get("rolling_restart", {}).get("lost") for row in rows) else 0)


if __name__ == "__main__":
    main()
