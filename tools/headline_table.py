"""README's table: each figure with the result file that it comes from, and that file's commit."""

import json


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def headline(decode_file, fp8_file, peers_file, forward_file, overlap_file, serve_file, known_file, generate_file):
    files = (decode_file, fp8_file, peers_file, forward_file, overlap_file, serve_file, known_file, generate_file)
    results = {path: read(path) for path in files}
    rows = (1, 8, 32)
    sizes = [f"{count} rows" for count in rows]

    def steps(path):
        return [point["step_ms"]["median"] for point in results[path]["points"] if point["rows"] in rows]

    def joined(times):
        return " / ".join(f"{time:.2f}" for time in times) + " ms"

    def pytorch(what, size):
        point = next(one for one in results[peers_file]["reference"] if (one["what"], one["size"]) == (what, size))
        return min(point["graph_ms"]["median"], point["compiled_ms"]["median"])

    def transformers(size):
        return min(one["step_ms"] for one in results[peers_file]["transformers"] if one["size"] == size)

    def ours(kind, size):
        return next(point["ms"]["median"] for point in results[forward_file][kind] if point["size"] == size)

    idle = [run["bubble_us_per_step"] for run in results[overlap_file]["runs"]
            if run["workload"] == "plain" and run["depth"] == 2 and not run["host_delay_us"]]
    served = {(point.get("concurrency"), point["max_tokens"]): point for point in results[serve_file]["points"]
              if point.get("depth", 2) == 2}
    known = results[known_file]["runs"][-1]["known picture"][0]

    def line(what, time, peer, other, *paths):
        source = ", ".join(f"`{path.split('/')[-1]}` ({results[path]['commit'].split()[-1]})" for path in paths)
        return row([what, time, peer, other, source])

    yield row(["what", "gapless", "PyTorch, the faster of CUDA graph and compiled", "transformers",
               "result file (commit)"]) + "|---|---|---|---|---|\n"
    yield line("decode step at 1 / 8 / 32 streams", joined(steps(decode_file)),
               joined(pytorch("decode", size) for size in sizes), joined(transformers(size) for size in sizes),
               decode_file, peers_file)
    yield line("the same with 8-bit weights and 16-bit activations", joined(steps(fp8_file)), "", "", fp8_file)
    yield line("device idle between decode steps, 1 to 64 streams", f"{min(idle):.1f} to {max(idle):.1f} µs", "", "",
               overlap_file)
    yield line("13 crops through the vision encoder, back to back", f'{ours("encodes", "13"):.1f} ms',
               f'{pytorch("encode", "13 crops"):.1f} ms', "", forward_file, peers_file)
    yield line("a prompt of 770 tokens", f'{ours("prefills", "1x770"):.1f} ms',
               f'{pytorch("prefill", "1 x 770"):.1f} ms', "", forward_file, peers_file)
    yield line("first token of a lone request about a new 800×600 picture, over HTTP (median)",
               f'{served[1, 3]["ttft_ms"]["p50"]:.1f} ms', "", "", serve_file)
    yield line("requests a second, each about a new 800×600 picture, 16 clients",
               f'{served[16, 3]["requests_per_s"]:.0f}', "", "", serve_file)
    yield line("first token of the next question about a picture (median)", f'{known["ttft_ms"]["p50"]:.1f} ms', "", "",
               known_file)
    batch = results[generate_file]
    best = min(point["seconds"] for point in batch["points"])
    yield line(f'{batch["prompts"]} answers of {batch["new_tokens"]} tokens of a text model (Llama 3\'s 8B shape), first request to last token',
               f"{best:.1f} s", "", "", generate_file)
