#!/usr/bin/env python3
"""Prints the files of bench/results as the Markdown tables of docs/benchmarks.md.

    tools/bench_tables.py bench/results/overlap-h200.json ...    to standard output
    tools/bench_tables.py --update docs/benchmarks.md            in place, between the marks
                                                                 <!-- FILE --> and <!-- end -->

A mark may name several files: those of decode, forward, forward after rest and peers, in this order,
make one table of ceiling, ours and theirs. A mark that begins with "headline" is README's table, one that begins with "gpus"
that of docs/gpus.md; one that begins with
"constrained" has what constrained rows take beside plain ones, and of one that begins with "forced" each file is a row.

Needs nothing but Python 3.
"""

import json
import re
import sys

import gpu_table
import headline_table


def table(header, rows):
    rows = list(rows)
    wrong = [row for row in rows if len(row) != len(header)]
    if wrong:
        raise ValueError(f"{len(header)} columns, and a row of {len(wrong[0])}: {wrong[0]}")
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def gain(share):
    return f"{100 * share:+.1f} %"


def spread(shares):
    """Median of the repeats, least and most."""
    return f'{gain(shares["median"])} ({100 * shares["min"]:+.1f} .. {100 * shares["max"]:+.1f})'


def ms(times, decimals=3):
    """Median of a spread; a dash where nothing was measured (short answers leave no full step)."""
    return f'{times["median"]:.{decimals}f}' if times["steps"] else "–"


def name_of(entry):
    delay = entry["host_delay_us"]
    return entry["workload"] + (f" + {delay:.0f} µs" if delay else "")


def overlap(result):
    steps = []
    host = []
    for run in result["runs"]:
        period = run["period_ms"]
        thread = run["engine_thread_us_per_step"]
        phases = run["bubble_us_per_step_by_phase"]
        guilty = max(phases, key=phases.get) if phases else ""
        name = [name_of(run), str(run["streams"]), str(run["depth"])]
        steps.append(name + [
            ms(run["forward_ms"]),
            ms(run["sampling_ms"]),
            ms(period) + (f' ({period["p10"]:.3f} .. {period["p90"]:.3f})' if period["steps"] else ""),
            f'{100 * run["device_busy_share"]:.2f} %',
            f'{run["bubble_us_per_step"]:.1f} {guilty}',
            f'{run.get("decode_gb_per_s", 0):.0f}',
            f'{100 * run["zombie_share"]:.2f} %',
            str(run["forbidden_calls"]),
            f'{run["tokens_per_s"]:.0f}',
        ])
        decode = thread.get("work_of_a_decode_step")
        host.append(name + [f"{thread[phase]:.1f}" for phase in
                            ("plan", "launch", "commit", "finalize", "other", "work")] +
                    [f'{decode["median"]:.1f}' if decode else ""])
    gains = []
    for entry in result["gains"]:
        known = entry.get("from_depth_1")
        if known is None:  # of a file from before predictions were made from depth 1 alone
            continue
        gains.append([name_of(entry), str(entry["streams"]), str(entry["depth"]), f'{known["forward_ms"]:.3f}',
                      f'{known["sampling_ms"]:.3f}', f'{known["host_us"]:.1f}', f'{known["L"]:.0f}',
                      f'{100 * known["z"]:.2f} %', f'{entry["blocking_ms"]:.3f}', f'{entry["pipelined_ms"]:.3f}',
                      spread(entry["predicted"]), spread(entry["observed"]),
                      spread(entry["observed_minus_predicted"]), gain(entry["of_it_device_work"]["median"]),
                      gain(entry["of_it_device_idle"]["median"])])
    key = ["workload", "streams", "depth"]
    yield table(key + ["forward ms", "sampling ms", "period ms (p10 .. p90)", "device busy",
                       "bubble µs/step", "decode GB/s", "zombies", "forbidden calls", "tokens/s"], steps)
    yield table(key + ["depth 1: forward ms", "sampling ms", "host µs", "L", "z", "period, depth 1 ms",
                       "this depth ms", "predicted", "observed", "observed − predicted", "of it device work",
                       "of it idle"], gains) if gains else ""
    yield table(key + ["plan µs", "launch µs", "commit µs", "finalize µs", "other µs", "all µs",
                       "decode step µs"],
                host)


def constrained(path):
    """Periods of full decode steps at depth 2, each repeat against the plain one of the same repeat."""
    result = read(path)
    runs = {(run["workload"], run["streams"]): run for run in result["runs"] if run["depth"] == 2}
    rows = []
    for (workload, streams), run in runs.items():
        plain = runs["plain", streams]
        # 0: a repeat without a full decode step.
        longer = sorted(mine / other - 1 for mine, other in zip(run["period_ms_of_each_repeat"],
                                                                 plain["period_ms_of_each_repeat"]) if mine and other)
        against = ""
        if longer and run is not plain:
            middle = (longer[(len(longer) - 1) // 2] + longer[len(longer) // 2]) / 2
            against = spread({"median": middle, "min": longer[0], "max": longer[-1]})
        found = run.get("new_masks_per_token")
        rows.append([str(streams), workload, ms(run["period_ms"], 4), against,
                     f'{1000 * run["sampling_ms"]["median"]:.1f}' if run["sampling_ms"]["steps"] else "–",
                     "" if found is None or workload in ("plain", "json-host-mask") else f"{found:.2f}"])
    rows.sort(key=lambda row: int(row[0]))
    yield (f'`{result["command"]}`, {result["model"]} on {result["device"]}, {result["date"][:10]}, commit {result["commit"]}; '
           "depth 2\n\n")
    yield table(["streams", "rows", "period ms", "against plain (least .. most of the repeats)", "sampling µs",
                 "new places a token"], rows)


def forced(*paths):
    rows = []
    for path in paths:
        result = read(path)
        counts = result["forced"]
        saved = counts["share_of_steps_saved_at_best"]
        rows.append([result["model"].removeprefix("a vocabulary of "), f'{result["supported"]} of {result["schemas"]}',
                     str(counts["tokens"]), f'{100 * counts["forced_tokens"] / counts["tokens"]:.2f} %',
                     f'{100 * counts["forced_bytes"] / counts["bytes"]:.1f} %', f'{100 * saved["known_at_once"]:.2f} %',
                     f'{100 * saved["known_a_step_late"]:.2f} %', f'`{path.split("/")[-1]}` ({result["commit"]})'])
    yield table(["vocabulary", "schemas", "tokens", "forced", "forced bytes", "steps saved at best", "known a step late",
                 "result file (commit)"], rows)


def generate(*paths):
    """The same batch of long answers by each of these files' engines."""
    rows = []
    for path in paths:
        result = read(path)
        for point in result["points"]:
            depth = point.get("depth")
            name = f'transformers {result["transformers"]}, {point["mode"]}' if depth is None else f"gapless, depth {depth}"
            if "--kv-cache fp8" in result["command"]:
                name += ", `--kv-cache fp8`"
            step = point["seconds"] / result["new_tokens"] * 1000
            busy = point.get("device_busy_percent")
            bubble = point.get("bubble_us_per_step")
            rows.append([name, str(result["new_tokens"]), f'{point["seconds"]:.1f}', f'{point["tokens_per_s"]:.0f}', f"{step:.2f}",
                         f"{busy:.2f} %" if busy else "", f"{bubble:.1f}" if bubble else "",
                         f'`{path.split("/")[-1]}` ({result["commit"]})'])
    yield table(["engine", "tokens each", "seconds", "tokens/s", "ms a token of all rows", "device busy", "idle µs a step",
                 "result file (commit)"], rows)


def decode(result):
    rows = []
    for point in result["points"]:
        step = point["step_ms"]
        percent = point.get("percent_of_ceiling")
        experts = [f'{point["experts_per_layer"]:.1f}'] if "experts_per_layer" in point else []
        rows.append([str(point["rows"]), f'{point["mean_context"]:.0f}', *experts,
                     f'{step["median"]:.4f} ({step["p10"]:.4f} .. {step["p90"]:.4f})',
                     f'{point["period_ms"]["median"]:.4f}', f'{point["bytes_per_step"] / 1e9:.3f}',
                     f'{point["gb_per_s"]:.0f}', f"{percent:.1f} %" if percent else "",
                     f'{point["bubble_us_per_step"]:.1f}'])
    experts = ["experts of a layer"] if "experts_per_layer" in result["points"][0] else []
    yield table(["rows", "context", *experts, "step ms (p10 .. p90)", "period ms", "GB/step", "GB/s",
                 "of the ceiling", "bubble µs/step"], rows)
    if result.get("dead_rows"):
        yield dead_rows(result)


def dead_rows(result):
    def median(point, name):
        return f'{point[name]["median"]:.4f}' if name in point else ""

    rows = [[str(point["rows"]), median(point, "live_step_ms"), median(point, "dead_step_ms"),
             f'{point["dead_step_percent"]:.2f} %', median(point, "one_row_less_ms"),
             median(point, "one_row_dead_ms"), median(point, "half_the_rows_ms"),
             median(point, "half_the_rows_dead_ms"), f'{point["zombie_tax_percent"]:.3f} %']
            for point in result["dead_rows"]]
    return table(["rows B", "all live, ms", "all done, ms", "of a live step", "B - 1 live", "B - 1 live, 1 done",
                  "B / 2 live", "B / 2 live, B / 2 done", f'z at L = {result["zombie_tax_of_answers_of"]:.0f}'], rows)


def short_answers(result):
    rows = []
    for run in result["runs"]:
        each = run["tokens_per_s_of_each_repeat"]
        dead = run.get("dead_step_us")
        rows.append([str(run["streams"]), str(run["depth"]),
                     f'{run["tokens_per_s"]:.0f} ({min(each):.0f} .. {max(each):.0f})',
                     gain(run["gain"]) if "gain" in run else "", f'{run["mean_answer_tokens"]:.2f}',
                     str(run["decode_steps"]), str(run["fill_steps"]), f'{100 * run["zombie_share"]:.1f} %',
                     f'{dead["median"]:.1f}' if dead else "", str(run["forbidden_calls"])])
    yield table(["streams", "depth", "tokens/s (lowest .. highest)", "gain", "L", "decode steps", "fill steps", "zombies",
                 "dead step, µs", "forbidden calls"], rows)


def forward(result):
    rows = []
    for what in ("encodes", "prefills"):
        for point in result[what]:
            time = point["ms"]
            percent = point.get("percent_of_ceiling")
            rows.append([what[:-1], point["size"],
                         f'{time["median"]:.2f} ({time["p10"]:.2f} .. {time["p90"]:.2f})',
                         f'{point["tflop"]:.2f}', f'{point["tflop_per_s"]:.0f}',
                         f"{percent:.1f} %" if percent else ""])
    yield table(["step", "size", "ms (p10 .. p90)", "TFLOP", "TFLOP/s", "of the ceiling"], rows)


def simulate(result):
    rows = []
    for row in result["rows"]:
        given, article, off = row["given"], row["article"], row["off_by"]
        rows.append([row["gpu"], str(row["streams"]), f'{given["forward_ms"]:.2f}', f'{given["sampling_ms"]:.2f}',
                     f'{given["host_ms"]:.2f}', f'{given["L"]:.0f}',
                     f'{row["blocking"]["period_ms"]:.2f} ({off["blocking_ms"]:+.3f})',
                     f'{row["pipelined"]["period_ms"]:.2f} ({off["pipelined_ms"]:+.3f})',
                     f'{100 * row["pipelined"]["zombie_share"]:.2f} %', f'{row["gain_percent"]:+.1f} %',
                     f'{article["predicted_percent"]:+.1f} % ({off["predicted_points"]:+.2f})',
                     f'{article["observed_percent"]:+.1f} % ({off["observed_points"]:+.2f})'])
    yield table(["GPU", "streams", "forward ms", "sampling ms", "host ms", "L", "blocking ms (off by)",
                 "pipelined ms (off by)", "zombies", "gain", "article's prediction (off by points)",
                 "its observation (off by points)"], rows)


def pictures(result):
    rows = [[kind["format"], kind["size"], f'{kind["bytes"] / 1e3:.0f}', name,
             f'{time["median"]:.2f} ({time["p10"]:.2f} .. {time["p90"]:.2f})']
            for kind in result["kinds"] for name, time in kind["stage_ms"].items()]
    yield table(["format", "size", "KB", "stage", "ms (p10 .. p90)"], rows)


def start(result):
    yield table(["cores", "median s", "p10", "p90", "answer"],
                [[str(result["cores"]), f'{result["median_s"]:.2f}', f'{result["p10_s"]:.2f}',
                  f'{result["p90_s"]:.2f}', result["answer"]]])


def serve(result):
    def three(values):
        return " / ".join(f"{values[key]:.1f}" for key in ("p50", "p90", "p99"))

    def share(point, name):
        return f"{100 * point[name]:.1f} %" if name in point else ""

    rows = []
    for point in result["points"]:
        errors = ", ".join(f"{count} {kind}" for kind, count in point["errors"].items()) or "0"
        resident = ""
        if "server_rss_begin_mb" in point:
            resident = f'{point["server_rss_begin_mb"]:.0f} → {point["server_rss_end_mb"]:.0f}'
        clients = f'{point["rate_per_s"]:g}/s' if "rate_per_s" in point else str(point["concurrency"])
        depth = str(point.get("depth", ""))
        rows.append([clients, str(point["max_tokens"]), depth, f'{point["seconds"]:.0f}',
                     str(point["answers"]), str(point.get("abandoned", 0)), errors,
                     f'{point["requests_per_s"]:.1f}', f'{point["output_tokens_per_s"]:.0f}',
                     three(point["ttft_ms"]), three(point["inter_token_ms"]),
                     three(point["latency_ms"]), share(point, "device_busy_share"),
                     share(point, "device_preparing_share"), share(point, "device_bubble_share"), resident])
    sizes = ", ".join(result["image_sizes"]) or "given"
    checked = "compared with a lone client's" if result["answers_checked"] else "not compared"
    kind = result.get("image_format", "png")
    yield (f'{result["api"]} {result["skill"]}, {result["distinct_images"]} pictures ({sizes}, {kind}), answers '
           f'{checked}, {result["note"] or "no note"}; times p50 / p90 / p99\n')
    yield table(["clients", "tokens", "depth", "s", "answers", "abandoned", "errors", "answers/s", "tokens/s",
                 "TTFT ms", "inter-token ms", "latency ms", "device busy", "preparing", "bubble", "server MB"], rows)
    yield from stages(result)
    if result.get("gains"):
        yield table(["clients", "tokens", "depth", "tokens/s against depth 1", "first token", "latency",
                     "engine thread µs/step, depth 1", "this depth"],
                    [[str(entry.get("concurrency", f'{entry.get("rate_per_s")}/s')), str(entry["max_tokens"]),
                      str(entry["depth"]), spread(entry["tokens_per_s_gain"]), spread(entry["ttft_p50_change"]),
                      spread(entry["latency_p50_change"]),
                      f'{entry["engine_thread_us_per_step_at_depth_1"]["median"]:.1f}',
                      f'{entry["engine_thread_us_per_step"]["median"]:.1f}'] for entry in result["gains"]])


def replicas(result):
    rows = [[label, f'{result[kind + "_per_s"]:.1f} ({min(each):.1f} .. {max(each):.1f})'] +
            [f'{100 * result["runs"][kind][0][share]:.1f} %' for share in ("device_busy_share", "device_preparing_share")]
            for kind, label in (("one", "1"), ("all", str(result["devices"])))
            for each in [[run["requests_per_s"] for run in result["runs"][kind]]]]
    yield table(["devices", "answers/s, median (least .. most)", "device busy", "preparing"], rows)
    yield (f'{result["ratio"]:.2f} times one (goal {result["goal"]:g}); of {result["questions"]} questions asked of both '
           f'{result["answers_that_differ"]} answers differ.\n')


def routers(result):
    def three(values):
        return " / ".join(f"{values[key]:.1f}" for key in ("p50", "p90", "p99"))

    rows = []
    for row in result["rows"]:
        restart = row.get("rolling_restart")
        lost = [str(restart["answered"]), str(restart["lost"])] if restart else ["", ""]
        rows.append([row["router"], str(row["replicas"]), str(row["load"]["clients"]), f'{row["load"]["requests_per_s"]:.0f}',
                     three(row["load"]["latency_ms"]), *lost])
    if result.get("note"):
        yield result["note"] + "\n"
    yield table(["router", "replicas", "clients", "requests/s", "latency ms, p50 / p90 / p99", "rolling restart: answered", "lost"], rows)


def foreign_load(result):
    def three(values):
        return " / ".join(f"{values[key]:.1f}" for key in ("p50", "p90", "p99"))

    yield table(["clients", "generator", "requests", "errors", "requests/s", "tokens/s", "TTFT ms, p50 / p90 / p99", "latency ms, p50 / p90 / p99"],
                [[str(row["clients"]), row["generator"], str(row["requests"]), str(row["errors"]), f'{row["requests_per_s"]:.1f}',
                  f'{row["tokens_per_s"]:.0f}', three(row["ttft_ms"]), three(row["latency_ms"])] for row in result["rows"]])


def scaling(result):
    def row(entry):
        latency = entry["latency_ms"]
        policy = entry["policy"] + (f', worth {entry["picture_worth"]}' if "picture_worth" in entry else "")
        overloaded = entry["busy_share"] >= 1
        times = ["overloaded"] * 3 if overloaded else [f"{latency[key]:.1f}" for key in ("p50", "p90", "p99")]
        return [entry["pictures"], f'{entry["requests_per_s_and_replica"]:g}', policy, f'{100 * entry["known_share"]:.1f} %',
                f'{entry["work_ms"]:.2f}', f'{entry["capacity_per_s_and_replica"]:.0f}', f'{entry["busy_share"]:.2f}',
                f'{entry["busiest_share"]:.2f}', *times]

    head = ["pictures", "requests/s each", "policy", "known", "work ms", "capacity/s each", "busy", "busiest", "p50 ms", "p90 ms", "p99 ms"]
    for name, entries in (("behind a router", result["routers"]), ("devices of one process", result["devices"])):
        yield f'{entries[0]["replicas"]} {"replicas " if name.startswith("behind") else ""}{name}:\n'
        yield table(head, [row(entry) for entry in entries])


def stages(result):
    """A lone client's mean request on its way to its first text."""
    points = [point for point in result["points"] if point.get("concurrency") == 1 and "mean_stage_ms" in point]
    if not points:
        return
    names = list(points[0]["mean_stage_ms"])
    rows = [[str(point["max_tokens"]), str(point.get("depth", "")), f'{point["mean_ttft_ms"]:.2f}'] +
            [f'{point["mean_stage_ms"][name]:.2f}' for name in names] +
            [", ".join(f"{kind} {ms:.2f}" for kind, ms in point["mean_device_step_ms"].items())] for point in points]
    yield "One client, mean ms of a request up to its first text, by stage (docs/http_api.md):\n"
    yield table(["tokens", "depth", "first text"] + names + ["steps on the device"], rows)


def kernels(result):
    rows = []
    for kernel in result["kernels"]:
        time = kernel["us"]
        rate = share = ""
        if "bytes" in kernel:
            rate = f'{kernel["bytes"] / time["median"] / 1e3:.0f} GB/s'
            share = f'{100 * kernel["share_of_bandwidth"]:.0f} %'
        elif "operations" in kernel:
            rate = f'{kernel["operations"] / time["median"] / 1e6:.0f} TFLOP/s'
            share = f'{100 * kernel["share_of_matrix_rate"]:.0f} %'
        rows.append([kernel["what"], f'{time["median"]:.2f} ({time["p10"]:.2f} .. {time["p90"]:.2f})', rate, share])
    yield table(["kernel", "µs (p10 .. p90)", "rate", "of the ceiling"], rows)


def logits(result):
    rows = [[step, str(point["rows"]), f'{point["error_median"]:.4f}', f'{point["error_p90"]:.4f}',
             f'{point["error_max"]:.4f}', f'{point["same_token_percent"]:.1f} %', f'{point["kl_nats"]:.1e}']
            for step, point in ((step, result[step]) for step in ("prefill", "decode"))]
    yield table(["step", "rows", "error, median", "p90", "max", "same greedy token", "KL, nats"], rows)


def power(result):
    rows = []
    for point in result["points"]:
        rest = point["rest_ms"]
        rows.append([point["what"], f'{rest["median"]:.2f} ({rest["min"]:.2f} .. {rest["max"]:.2f})',
                     f'{point["rest_tflop_per_s"]:.0f}', f'{point["back_to_back_ms"]:.2f}',
                     f'{point["back_to_back_tflop_per_s"]:.0f}', f'{point["watts"]:.0f}',
                     f'{point["picojoules_per_operation"]:.2f}'])
    yield table(["bare products, attention", "after rest ms (min .. max)", "TFLOP/s", "back to back ms", "TFLOP/s", "W",
                 "pJ per operation"], rows)


def ceiling_ours_theirs(decoded, forwarded, rested, peers):
    """Decode steps, encodes and prefills: the ceiling's time, ours, the peers', and the fastest of them over ours."""
    ours = []
    for point in decoded["points"]:
        step = point["step_ms"]["median"]
        ours.append(("decode", f'{point["rows"]} rows', step, step * point["percent_of_ceiling"] / 100, None))
    for what in ("encode", "prefill"):
        after_rest = {point["size"]: point["ms"]["median"] for point in rested[what + "s"]}
        for point in forwarded[what + "s"]:
            time = point["ms"]["median"]
            size = point["size"].replace("x", " x ") if what == "prefill" else f'{point["size"]} crops'
            ours.append((what, size, time, time * point["percent_of_ceiling"] / 100, after_rest.get(point["size"])))
    ways = ("eager", "graph", "compiled")
    theirs = {(row["what"], row["size"]): [row[f"{way}_ms"]["median"] for way in ways]
              for row in peers["reference"]}
    batching = {}
    for row in peers.get("transformers", []):
        key = row["what"], row["size"]
        batching[key] = min(row["step_ms"], batching.get(key, row["step_ms"]))
    rows = []
    for what, size, time, floor, rest in ours:
        if (what, size) not in theirs:
            continue
        times = theirs[what, size]
        other = batching.get((what, size))
        rows.append([what, size, f"{floor:.2f}", f"{time:.2f}", f"{100 * floor / time:.0f} %",
                     f"{rest:.2f}" if rest else "", *(f"{t:.2f}" for t in times), f"{other:.2f}" if other else "",
                     f"{min(times + ([other] if other else [])) / time:.2f}"])
    yield table(["step", "size", "ceiling ms", "ours ms", "of the ceiling", "ours after rest",
                 *(f"PyTorch {way} ms" for way in ways), "transformers ms", "fastest of them / ours"], rows)


def grammar(result):
    named = (("compile, ms", "compile_ms"), ("legal tokens at a place, µs", "mask_us"), ("tables, KB", "table_kb"), ("states", "states"))
    quantiles = ("p50", "p95", "p99", "p99_9", "max")
    yield table(["", "p50", "p95", "p99", "p99.9", "most"],
                [[name, *(f"{result[key][quantile]:g}" for quantile in quantiles)] for name, key in named])
    yield (f"{result['supported']} of {result['schemas']} schemas are held; of their values {result['valid_refused']} of "
           f"{result['valid_values']} valid ones are refused, and {result['invalid_accepted']} of {result['invalid_values']} "
           "invalid ones accepted.\n")
    if "forced" in result:
        forced = result["forced"]
        saved = forced["share_of_steps_saved_at_best"]
        yield (f"{100 * forced['forced_tokens'] / forced['tokens']:.1f} % of {forced['tokens']} tokens are forced, and "
               f"{100 * forced['forced_bytes'] / forced['bytes']:.1f} % of the bytes. With one step for each run of forced tokens at "
               f"most {100 * saved['known_at_once']:.2f} % of the steps are saved, {100 * saved['known_a_step_late']:.2f} % where the "
               "host learns of a run a step late.\n")


def parity(result):
    """Of each stage the largest error of each set of goldens (tools/parity_table.py)."""
    rows = [[stage["stage"]] + [f"{stage[one]:.1e}" if one in stage else "" for one in result["sets"]] for stage in result["stages"]]
    yield table(["stage", *result["sets"]], rows)


def quality(result):
    """Of each task of the held-out scenes the score in each way of computing."""
    ways = [name for name in result["scores"][0] if name not in ("measured", "requests")]
    rows = [[score["measured"], str(score["requests"])] + [f"{score[way]:.3f}" for way in ways] for score in result["scores"]]
    yield table(["task", "requests", *ways], rows)


def paths(result):
    def step(got, rows):
        point = next(point for point in got["decode"] if point["rows"] == rows)  # a file may have more
        return f'{point["step_ms"]["median"]:.2f} ({point["percent_of_ceiling"]:.0f} %)'

    rows = [[path, *(step(got, rows) for rows in (1, 8, 32)), f'{got["encode_13_ms"]:.1f}', f'{got["prefill_770_ms"]:.2f}']
            for path, got in result["paths"].items()]
    yield table(["path", "step at 1 row, ms (of the bandwidth)", "8 rows", "32 rows", "13 crops, ms", "770 tokens, ms"], rows)


TABLES = {"overlap": overlap, "decode": decode, "forward": forward, "simulate": simulate, "start": start,
          "pictures": pictures, "serve": serve, "short-answers": short_answers, "kernels": kernels, "logits": logits,
          "power": power, "grammar": grammar, "replicas": replicas, "routers": routers, "foreign_load": foreign_load,
          "scaling": scaling, "paths": paths, "parity": parity, "quality": quality}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def tables_of(paths):
    if paths.startswith("headline "):
        return "".join(headline_table.headline(*paths.split()[1:]))
    if paths.startswith("gpus "):
        return table(gpu_table.HEADER, gpu_table.rows_of(paths.split()[1]))
    if paths.startswith("constrained "):
        return "".join(constrained(paths.split()[1]))
    if paths.startswith("forced "):
        return "".join(forced(*paths.split()[1:]))
    if paths.startswith("generate "):
        return "".join(generate(*paths.split()[1:]))
    if len(paths.split()) > 1:
        return "\n".join(ceiling_ours_theirs(*map(read, paths.split())))
    result = read(paths)
    source = (f'`{result["command"]}`, {result["model"]} on {result["device"]}, '
              f'{result["date"][:10]}, commit {result["commit"]}, ceiling: {result["ceiling"]}')
    return "\n".join([source + "\n", *TABLES[result["benchmark"]](result)])


def with_tables(text):
    """The page with the tables between its marks made anew."""
    return re.sub(r"<!-- ((?:headline |gpus |constrained |forced |generate )?\S+\.json(?: \S+\.json)*) -->\n.*?<!-- end -->",
                  lambda mark: f"<!-- {mark[1]} -->\n{tables_of(mark[1])}<!-- end -->", text,
                  flags=re.DOTALL)


def update(page):
    with open(page, encoding="utf-8") as file:
        text = with_tables(file.read())
    with open(page, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--update":
        for page in sys.argv[2:]:
            update(page)
        return
    for path in sys.argv[1:]:
        print(tables_of(path))


if __name__ == "__main__":
    main()
