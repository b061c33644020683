#!/usr/bin/env python3
"""What an overload of large pictures costs everybody else: memory, /health, text and known pictures.

    bench/overload.py --binary build/cpu-release/apps/gapless --json bench/results/overload-cpu.json

Starts `gapless serve`, sends pictures of 100 megapixels (files of about 2 MB, half of them JPEG, half PNG, no two alike)
all at once, and asks beside them, again and again, for /health, a text question, and a question about a small picture
that the server knows. Before that, clients go away in the middle of the decoding (and cutting), and it is measured how
soon it ends (gapless_picture_memory_bytes). Needs Pillow. Clients and server share the machine's cores (--cores limits
both); each of those who ask is a process of its own, so that the senders' work in Python does not count as waiting. Those who ask
come before all others on the cores, where the system permits it ("askers_come_first"): on a machine of their own they would not wait for
these cores, so what is measured is how long the server takes. It has the priority of any process.
A server that does nothing but answer is asked in the same way as /health, at the same time and on the same cores: how long
that takes ("nothing" in the result) is not gapless's doing.
A virtual machine's host may take a core away, for 10 ms and more, from whatever runs on it. On each core a real-time process
that should wake each millisecond sees when ("machine" in the result, beside what the kernel itself counts as stolen). What was
asked while a core was away is counted, and it is counted again without that ("undisturbed").
"""

import argparse
import base64
import ctypes
import gc
import http.client
import io
import json
import multiprocessing
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gapless_tools.plain_png import plain_png, png_chunk  # noqa: E402

SIDE = 10_000
MCL_CURRENT, MCL_FUTURE = 1, 2  # of sys/mman.h
ASKED = ("health", "nothing", "text", "known_picture")  # again and again, beside the load
STOLEN_MS = 2  # less is not told from what the kernel itself does


def make_png(side, file_bytes):
    """RGB; noise in the first columns makes the file as large as asked for."""
    noise = random.Random(1)
    compressor = zlib.compressobj(6)
    num_noisy = max(0, file_bytes - side * side * 3 // 1000) // side
    plain = bytes(side * 3 - num_noisy)
    data = [compressor.compress(b"\0" + noise.randbytes(num_noisy) + plain) for _ in range(side)]
    data.append(compressor.flush())
    return plain_png(side, side, b"".join(data))


def make_jpeg(side, file_bytes):
    from PIL import Image
    noisy_rows = 16
    while True:  # more noise until the file is large enough
        image = Image.new("RGB", (side, side), (90, 120, 150))
        image.paste(Image.effect_noise((side, noisy_rows), 80).convert("RGB"), (0, 0))
        out = io.BytesIO()
        image.save(out, "JPEG", quality=85)
        if out.tell() >= file_bytes or noisy_rows >= side:
            return out.getvalue()
        noisy_rows = int(noisy_rows * 1.5)


def make_webp(side, lossless):
    from PIL import Image
    side = min(side, 6_300 if lossless else 9_999)  # kMaxLosslessWebpPixels
    image = Image.new("RGB", (side, side), (90, 120, 150))
    image.paste(Image.effect_noise((side, 400), 80).convert("RGB"), (0, 4000))
    out = io.BytesIO()
    image.save(out, "WEBP", lossless=lossless, method=0, quality=50)
    return out.getvalue()


def make_progressive_jpeg(side):
    from PIL import Image
    image = Image.new("RGB", (side, side), (90, 120, 150))
    image.paste(Image.effect_noise((side, 400), 80).convert("RGB"), (0, 4000))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=85, progressive=True)
    return out.getvalue()


def variant(picture, number):
    """The same pixels in a file of its own: a comment with a number."""
    comment = f"variant {number}".encode()
    if picture[:2] == b"\xff\xd8":
        return picture[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + picture[2:]
    if picture[:4] == b"RIFF":  # behind the end that its header names
        return picture + comment
    return picture[:33] + png_chunk(b"tEXt", b"n\0" + comment) + picture[33:]


def body_of(question, picture=None, max_tokens=8):
    body = {"question": question, "settings": {"max_tokens": max_tokens, "ignore_eos": True}}
    if picture is not None:
        body["image_url"] = "data:;base64," + base64.b64encode(picture).decode()
    return json.dumps(body).encode()


class Server:
    def __init__(self, binary, arguments):
        self.log = tempfile.NamedTemporaryFile("w", prefix="gapless-overload-", suffix=".log")
        self.process = subprocess.Popen([binary, "serve", "--port", "0", "--quiet", *arguments], stderr=self.log)
        self.port = None
        while True:
            if self.process.poll() is not None:
                sys.exit("gapless serve ended:\n" + self.text())
            found = re.search(r"127\.0\.0\.1:(\d+)", self.listening())
            if found and self.ready(int(found.group(1))):
                self.port = int(found.group(1))
                return
            time.sleep(0.05)

    def listening(self):
        """--quiet logs no address; the socket is in /proc."""
        inodes = set()
        for name in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(name)))
            except OSError:
                pass
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return f"127.0.0.1:{int(fields[1].split(':')[1], 16)}"
        return ""

    def ready(self, port):
        try:
            return ask(port, "GET", "/ready")[0] == 200
        except OSError:
            return False

    def text(self):
        return Path(self.log.name).read_text()

    def memory_mb(self, field):
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        return int(found.group(1)) * 1024 / 1e6

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def ask(port, method, path, body=None, timeout=1200):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request(method, path, body)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def answer_nothing(listener):
    """A server that has nothing to do."""
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


class Nothing:
    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.process = multiprocessing.Process(target=answer_nothing, args=(listener,), daemon=True)
        self.process.start()


def come_first():
    """Whether the system lets this process come before others, and keep its memory where it is."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except PermissionError:
        return False
    return ctypes.CDLL(None).mlockall(MCL_CURRENT | MCL_FUTURE) == 0


def ask_at_once(port, request):
    """As ask(), of a whole request, with as little of this process's own time as Python can do with."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        answer = connection.recv(65536)
        while more := connection.recv(65536):
            answer += more
    return int(answer.split(b" ", 2)[1])


def probe(port, request, pause_s, done, results):
    """Asks again and again, `pause_s` after each answer, and notes how long each took, and when it began."""
    asked, failures = [], 0
    comes_first = come_first()
    gc.disable()
    while not done.wait(pause_s):
        begin = time.perf_counter()
        status = ask_at_once(port, request)
        asked.append(((time.perf_counter() - begin) * 1e3, begin))
        failures += status != 200
    results.put((asked, failures, comes_first))


def stolen_ms(core):
    """By the kernel's count, in steps of 10, since it began."""
    fields = re.search(rf"^cpu{core} (.*)$", Path("/proc/stat").read_text(), re.MULTILINE).group(1).split()
    return int(fields[7]) * 1000 // os.sysconf("SC_CLK_TCK")


def watch_core(core, done, results):
    """When nothing ran on it, not even what comes before everything else: [begin, end]."""
    os.sched_setaffinity(0, [core])
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    except PermissionError:
        results.put(None)
        return
    away, before_ms = [], stolen_ms(core)
    gc.disable()
    end = time.perf_counter()
    while not done.value:
        begin = end
        time.sleep(0.001)
        end = time.perf_counter()
        if (end - begin) * 1e3 > 1 + STOLEN_MS:
            away.append((begin, end))
    results.put((away, stolen_ms(core) - before_ms))


class Machine:
    """Processes that watch its cores until stop()."""

    def __init__(self):
        self.done = multiprocessing.Value("b", 0, lock=False)
        self.watchers = []
        for core in sorted(os.sched_getaffinity(0)):
            results = multiprocessing.Queue()
            process = multiprocessing.Process(target=watch_core, args=(core, self.done, results), daemon=True)
            process.start()
            self.watchers.append((process, results))

    def stop(self):
        """The times in which a core was away, and what to say of them; None where nobody may watch."""
        self.done.value = 1
        seen = [results.get() for _, results in self.watchers]
        for process, _ in self.watchers:
            process.join()
        if None in seen:
            return None, "real-time processes are not permitted here"
        away = sorted(one for cores, _ in seen for one in cores)
        lengths = [(end - begin) * 1e3 - 1 for begin, end in away]
        return away, {"times_away": len(away), "away_ms": round(sum(lengths)), "longest_away_ms": round(max(lengths, default=0), 1),
                      "stolen_by_the_kernels_count_ms": sum(stolen for _, stolen in seen)}


class Probe:
    """A process that probes until stop()."""

    def __init__(self, port, method, path, body, pause_s):
        self.done, self.results = multiprocessing.Event(), multiprocessing.Queue()
        body = body or b""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        self.process = multiprocessing.Process(
            target=probe, args=(port, head.encode() + body, pause_s, self.done, self.results), daemon=True)
        self.process.start()

    def stop(self, begin=0.0):
        """`begin`: what the times of the slowest are counted from."""
        self.finish()
        return self.summary(begin)

    def finish(self):
        self.done.set()
        self.asked, self.failures, self.comes_first = self.results.get()
        self.process.join()

    def summary(self, begin=0.0, away=None):
        """`away`: when the machine's cores were."""
        ordered = sorted(self.asked)
        at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))][0], 2)
        result = {"asked": len(ordered), "failures": self.failures, "p50_ms": at(0.5), "p99_ms": at(0.99),
                  "max_ms": round(ordered[-1][0], 2),
                  "slowest_ms_at_s": [[round(took, 1), round(when - begin, 2)] for took, when in ordered[:-6:-1]]}
        if away is not None:
            rest = undisturbed(ordered, away)
            result["undisturbed"] = {"asked": len(rest), "max_ms": round(max(rest), 2) if rest else None}
        return result


def gauge(port, name):
    metrics = ask(port, "GET", "/metrics")[1].decode()
    return float(re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE).group(1))


def cancel_ms(port, body, after_s):
    """A client that goes away in the middle of the decoding, `after_s` after it was seen to begin: how long until it
    ends; None when it had ended before."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/query", body)
    while gauge(port, "gapless_picture_memory_bytes") == 0:
        pass
    time.sleep(after_s)
    was_decoding = gauge(port, "gapless_picture_memory_bytes") > 0
    connection.sock.close()
    connection.close()
    begin = time.perf_counter()
    while gauge(port, "gapless_picture_memory_bytes") > 0:
        pass
    took_ms = (time.perf_counter() - begin) * 1e3
    while sum(gauge(port, f"vllm:num_requests_{state}") for state in ("running", "waiting")) > 0:
        time.sleep(0.01)
    return (took_ms, begin) if was_decoding else None


def decode_seconds(port):
    """That all requests so far spent in decoding and cutting."""
    metrics = ask(port, "GET", "/metrics")[1].decode()
    return sum(float(number) for number in
               re.findall(r'^gapless_request_stage_seconds_sum\{.*stage="(?:decode|cut)".*\} (\S+)$', metrics,
                          re.MULTILINE))


def measure_cancels(port, originals, num_tries):
    """Of each format, at moments all over the decoding."""
    result = {}
    for name, picture in originals.items():
        before_s = decode_seconds(port)
        assert ask(port, "POST", "/v1/query", body_of("What?", variant(picture, "whole"), 1))[0] == 200, name
        decode_s = decode_seconds(port) - before_s
        times = []
        for i in range(num_tries):
            took = cancel_ms(port, body_of("What?", variant(picture, f"cancel {i}"), 1), decode_s * 0.9 * i / num_tries)
            if took is not None:
                times.append(took)
        result[name] = (round(decode_s * 1e3), sorted(times))
        print("cancelled", name, result[name], flush=True)
    return result


def summary_of_cancels(cancels, away):
    result = {}
    for name, (decode_ms, times) in cancels.items():
        result[name] = {"decode_ms": decode_ms, "tries": len(times), "max_ms": round(times[-1][0], 1),
                        "median_ms": round(times[len(times) // 2][0], 1)}
        if away is not None:
            rest = undisturbed(times, away)
            result[name]["undisturbed_max_ms"] = round(max(rest), 1) if rest else None
    return result


def undisturbed(times, away):
    """How long those took, of pairs with when they began, during which no core was away."""
    return [took_ms for took_ms, when in times
            if not any(start < when + took_ms / 1e3 and when < end for start, end in away)]


def make_pictures(options):
    print("making the pictures", flush=True)
    pictures = {"jpeg": make_jpeg(SIDE, options.file_bytes), "png": make_png(SIDE, options.file_bytes)}
    if options.cancels > 0:
        pictures |= {"progressive jpeg": make_progressive_jpeg(SIDE), "webp": make_webp(SIDE, False),
                     "lossless webp": make_webp(SIDE, True)}
    return pictures


def measure(options, pictures):
    originals = [pictures["jpeg"], pictures["png"]]
    bodies = [body_of("What is it?", variant(originals[i % 2], i)) for i in range(options.count)]
    small = body_of("How many circles?", (ROOT / "models/tiny/examples/small.png").read_bytes())
    text = body_of("How many circles?")
    server = Server(options.binary,
                    ["--device", options.device, "--picture-memory-mb", str(options.picture_memory_mb),
                     "--kv-cache-gb", str(options.kv_cache_gb)])
    for _ in range(3):
        assert ask(server.port, "POST", "/v1/query", text)[0] == 200
        assert ask(server.port, "POST", "/v1/query", small)[0] == 200
    alone_probe = Probe(server.port, "POST", "/v1/query", text, 0)
    time.sleep(3)
    alone = alone_probe.stop(time.perf_counter())
    idle_mb = server.memory_mb("VmRSS")
    machine = Machine()
    cancels = {}
    if options.cancels > 0:
        cancels = measure_cancels(server.port, pictures, options.cancels)

    nothing = Nothing()
    probes = {"health": Probe(server.port, "GET", "/health", None, 0.02),
              "nothing": Probe(nothing.port, "GET", "/", None, 0.02),
              "text": Probe(server.port, "POST", "/v1/query", text, 0.2),
              "known_picture": Probe(server.port, "POST", "/v1/query", small, 0.2)}
    statuses = [None] * options.count
    finished_s = [None] * options.count
    begin = time.perf_counter()

    def send(i):
        statuses[i], _ = ask(server.port, "POST", "/v1/query", bodies[i])
        finished_s[i] = time.perf_counter() - begin

    load = os.getloadavg()
    senders = [threading.Thread(target=send, args=(i,)) for i in range(options.count)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    for one in probes.values():
        one.finish()
    away, machine_summary = machine.stop()
    summaries = {name: one.summary(begin, away) for name, one in probes.items()}
    nothing.process.terminate()
    peak_mb = server.memory_mb("VmHWM")
    server.stop()
    return {
        "picture": {"megapixels": SIDE * SIDE / 1e6, "count": options.count,
                    "file_mb": [round(len(one) / 1e6, 2) for one in originals], "formats": ["jpeg", "png"]},
        "kv_cache_mb": round(options.kv_cache_gb * 1073.741824, 1),
        "picture_memory_mb": round(options.picture_memory_mb * 1.048576, 1),
        "answers": {str(status): statuses.count(status) for status in sorted(set(statuses))},
        "seconds": round(max(finished_s), 1),
        "resident_idle_mb": round(idle_mb, 1),
        "resident_peak_mb": round(peak_mb, 1),
        "peak_beyond_budget_mb": round(peak_mb - options.picture_memory_mb * 1.048576, 1),
        "cancelled": summary_of_cancels(cancels, away),
        "text_alone": alone,
        **summaries,
        "machine": machine_summary,
        "askers_come_first": all(one.comes_first for one in probes.values()),
        "load_average_before": [round(value, 2) for value in load],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu-release/apps/gapless")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cores", type=int, default=2, help="for the server and its clients together; 0: all")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--file-bytes", type=int, default=2_000_000)
    parser.add_argument("--picture-memory-mb", type=int, default=1024)
    parser.add_argument("--kv-cache-gb", type=float, default=0.1,
                        help="small: on a CPU it becomes resident as pictures fill it, and what is looked for is the "
                             "memory of decoding (0.1)")
    parser.add_argument("--cancels", type=int, default=10, help="clients of each format that go away, before the load")
    parser.add_argument("--runs", type=int, default=1, help="the whole again; the file has the last one, and of all the worst")
    parser.add_argument("--note", default="")
    parser.add_argument("--commit", help="of the binary; of this tree where it has git")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.cores > 0:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.cores])
    pictures = make_pictures(options)
    results = []
    for _ in range(options.runs):
        results.append(measure(options, pictures))
        print({name: results[-1][name]["max_ms"] for name in ASKED}, flush=True)
    result = results[-1]
    if options.runs > 1:
        result["worst_of_each_run"] = {
            **{f"{name}_ms": [one[name]["max_ms"] for one in results]
               for name in ASKED},
            **{f"{name}_undisturbed_ms": [one[name].get("undisturbed", {}).get("max_ms") for one in results]
               for name in ("health", "nothing")},
            "machine_longest_away_ms": [one["machine"].get("longest_away_ms") if isinstance(one["machine"], dict) else None
                                        for one in results],
            "cancelled_ms": [max((format["max_ms"] for format in one["cancelled"].values()), default=None)
                             for one in results],
            "cancelled_undisturbed_ms": [max((format["undisturbed_max_ms"] for format in one["cancelled"].values()
                                              if format.get("undisturbed_max_ms") is not None), default=None)
                                         for one in results],
            "resident_peak_mb": [one["resident_peak_mb"] for one in results]}
    commit = options.commit or subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], cwd=ROOT,
                                              capture_output=True, text=True).stdout.strip()
    result = {"command": " ".join(["bench/overload.py", *sys.argv[1:]]),
              "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit,
              "device": f"{options.device.upper()}, {options.cores or os.cpu_count()} cores", "model": "models/tiny",
              "ceiling": "none", "benchmark": "overload", "spread": "p50, p99 and the largest of all that were asked",
              "note": options.note, **result}
    print(json.dumps(result, indent=2))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
