"""gapless under Ray Serve: one `gapless serve` per replica, started, watched and scaled by Ray.

    pip install "ray[serve]" httpx
    PYTHONPATH=deploy serve run ray_serve:build binary=/usr/local/bin/gapless model=vikhyatk/moondream2 num_gpus=1

Ray's HTTP proxy (port 8000) hands each request as it is to a replica's own server on a loopback port, and streams come
through as they are made. Arguments (name=value): binary, model, device (cuda with num_gpus, else cpu), options (more
words for `gapless serve`), num_gpus, num_cpus, min_replicas, max_replicas, max_ongoing_requests, waiting_per_replica,
running_per_replica, metrics_interval_s, upscale_delay_s, downscale_delay_s.

* Health: a replica is healthy while its server's /ready says so. One whose process has ended, or whose devices are all
  lost, is replaced by Ray.
* Queue length: a replica tells Ray its vllm:num_requests_waiting and _running, and wanted_replicas() below decides.
* End: Ray lets a replica's requests finish before it ends it; the server gets SIGTERM then, and also if Ray's process is
  killed.
"""

import ctypes
import math
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time

import httpx
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

START_SECONDS = 600  # loading a large model over a slow disk
WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
# Of one connection, not of the message.
HOP_BY_HOP = {"host", "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}


def wanted_replicas(current, waiting, running, waiting_per_replica, running_per_replica):
    """As many that none has more than `waiting_per_replica` waiting; one less when nobody waits and the others can run
    all that runs."""
    if waiting > current * waiting_per_replica:
        return max(current + 1, math.ceil(waiting / waiting_per_replica))
    if waiting == 0 and current > 1 and running <= (current - 1) * running_per_replica:
        return current - 1
    return current


class ScaleByQueue:
    """Ray's autoscaling policy: a class that its controller imports by name and makes with these values."""

    def __init__(self, waiting_per_replica, running_per_replica):
        self.waiting_per_replica, self.running_per_replica = waiting_per_replica, running_per_replica

    def __call__(self, context):
        def all_of(name):
            return sum((context.aggregated_metrics or {}).get(name, {}).values())

        wanted = wanted_replicas(context.target_num_replicas, all_of(WAITING), all_of(RUNNING), self.waiting_per_replica,
                                 self.running_per_replica)
        return min(max(wanted, context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas), {}


def end_with_parent():
    """In the child: SIGTERM when the thread that started it is gone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def start(words, log):
    """A process that ends with this one, however this one ends. Linux means the thread that starts a process by its parent,
    and Ray's that calls a constructor ends with it: so a thread of the child's own starts it and waits for its end."""
    started = queue.SimpleQueue()

    def keep():
        try:
            process = subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=end_with_parent)
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    threading.Thread(target=keep, daemon=True).start()
    process = started.get()
    if isinstance(process, OSError):
        raise process
    return process


class Gapless:
    def __init__(self, words):
        self.log = tempfile.NamedTemporaryFile("w", prefix="gapless-replica-", suffix=".log")
        # Ray has seen to it that nobody sends anything any more when a replica ends: no lead.
        self.process = start([*words, "--host", "127.0.0.1", "--port", "0", "--drain-lead", "0"], self.log)
        url = self.wait_for(r"listening url=(\S+)")
        self.wait_for(r" ready model=(\S+)")
        self.client = httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None))

    def text(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def wait_for(self, pattern):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.text()):
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError("gapless serve did not start:\n" + self.text()[-4000:])

    async def __call__(self, request: Request):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP | {"content-length"}]
        answer = await self.client.send(self.client.build_request(request.method, target, headers=headers, content=await request.body()),
                                        stream=True)

        async def body():
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            finally:
                await answer.aclose()  # a client that goes away ends its request

        kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
        return StreamingResponse(body(), status_code=answer.status_code, headers=kept)

    async def check_health(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"gapless serve ended with {self.process.returncode}:\n" + self.text()[-2000:])
        answer = await self.client.get("/ready")
        if answer.status_code != 200:
            raise RuntimeError(answer.text)

    async def record_autoscaling_stats(self):
        text = (await self.client.get("/metrics")).text
        return {name: float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M)[1]) for name in (WAITING, RUNNING)}

    def __del__(self):
        process = getattr(self, "process", None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def build(arguments):
    """The application; `arguments` are the words name=value of `serve run`."""
    known = {"binary": "gapless", "model": "", "device": "", "options": "", "num_gpus": 0, "num_cpus": 1, "min_replicas": 1, "max_replicas": 8,
             "max_ongoing_requests": 256, "waiting_per_replica": 8, "running_per_replica": 32, "metrics_interval_s": 1,
             "upscale_delay_s": 5, "downscale_delay_s": 300}
    if unknown := sorted(set(arguments) - set(known)):
        raise ValueError(f"unknown arguments: {', '.join(unknown)}; known are {', '.join(known)}")
    # From the command line everything is text.
    given = {name: type(known[name])(arguments[name]) if not isinstance(known[name], int) else float(arguments[name]) for name in arguments}
    chosen = {**known, **given}
    words = [chosen["binary"], "serve", "--device", chosen["device"] or ("cuda" if chosen["num_gpus"] else "cpu")]
    words += ["--model", chosen["model"]] if chosen["model"] else []
    words += chosen["options"].split()
    policy = {"policy_function": f"{__name__}:{ScaleByQueue.__name__}",
              "policy_kwargs": {name: chosen[name] for name in ("waiting_per_replica", "running_per_replica")}}
    deployment = serve.deployment(
        Gapless, name="gapless", max_ongoing_requests=int(chosen["max_ongoing_requests"]),
        health_check_period_s=2, health_check_timeout_s=20, graceful_shutdown_timeout_s=120,
        ray_actor_options={"num_gpus": chosen["num_gpus"], "num_cpus": chosen["num_cpus"]},
        autoscaling_config={"min_replicas": int(chosen["min_replicas"]), "max_replicas": int(chosen["max_replicas"]),
                            "metrics_interval_s": chosen["metrics_interval_s"], "look_back_period_s": 3 * chosen["metrics_interval_s"],
                            "upscale_delay_s": chosen["upscale_delay_s"], "downscale_delay_s": chosen["downscale_delay_s"],
                            "policy": policy})
    return deployment.bind(words)
