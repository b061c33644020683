"""The table of docs/gpus.md: a row per GPU, what ran there, what is predicted, and what its users measured.

Predictions are those of bench/results/gpus-predicted.json (gapless bench simulate --gpu all). Measured figures are those of the
files beside it that are named after their own device, decode-h200.json and those that tools/add_gpu_run.py adds.
"""

import json
import re
from pathlib import Path

ROWS = (1, 8, 32)
# What a driver adds to a GPU's name without making it another GPU. A 40 GB A100, a PCIe H100 and a Ti are others.
SAME_GPU = re.compile(r"(SXM\d?|HBM\d?e?|80GB)", re.IGNORECASE)


def words_of(device):
    """'NVIDIA GeForce RTX 3090' -> ['RTX', '3090']"""
    return [word for word in re.split(r"[\s-]+", device) if word and word.lower() not in ("nvidia", "geforce")]


def file_name(device):
    return "decode-" + "-".join(words_of(device)).lower() + ".json"


def is_gpu(device, name):
    """Whether a driver's device name is that of the GPU `name`."""
    device_words, own = [word.lower() for word in words_of(device)], name.lower().split()
    return device_words[: len(own)] == own and all(SAME_GPU.fullmatch(word) for word in device_words[len(own):])


def measured_runs(folder):
    """{file name: result} of the files that are named after their device."""
    runs = {}
    for path in sorted(Path(folder).glob("decode-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        device = result.get("device", "")
        if device.startswith("NVIDIA") and path.name == file_name(device):
            runs[path.name] = result
    return runs


def steps_of(result):
    times = {point["rows"]: point["step_ms"]["median"] for point in result["points"]}
    return " / ".join(f"{times[rows]:.2f}" if rows in times else "–" for rows in ROWS)


def both(least, most, decimals):
    """'0.42' or '0.42–0.62'"""
    low, high = f"{least:.{decimals}f}", f"{most:.{decimals}f}"
    return low if low == high else f"{low}–{high}"


def predicted_cells(gpu):
    fast, slow = gpu["by_data_sheet"], gpu["at_seen_rates"]
    pairs = list(zip(fast["steps"], slow["steps"]))
    return [" / ".join(both(a["step_ms"], b["step_ms"], 2) for a, b in pairs),
            " / ".join(both(b["gain_percent"], a["gain_percent"], 1) for a, b in pairs),
            both(fast["first_token_ms"], slow["first_token_ms"], 1),
            " / ".join(f'{point["period_ms"]:.2f}' for point in gpu["photon"]) or "–"]


def what_ran(gpu, run):
    shares = gpu["shares_of"]
    if gpu["gpu"] == shares["device"]:
        return "everything"
    if run:
        return "`gapless bench decode`"
    if gpu["path_has_run"]:
        return f'compiled only; its path ran on an {shares["device"]}'
    return "compiled only"


def measured_cell(run):
    return f"{steps_of(run[1])} (`{run[0]}`, {run[1]['commit']})" if run else "–"


def rows_of(predicted_path):
    predicted = json.loads(Path(predicted_path).read_text(encoding="utf-8"))
    runs = measured_runs(Path(predicted_path).parent)
    for gpu in predicted["gpus"]:
        run = next((one for one in runs.items() if is_gpu(one[1]["device"], gpu["gpu"])), None)
        if run:
            del runs[run[0]]
        yield [gpu["gpu"], gpu["compute_capability"], gpu["path"], what_ran(gpu, run), *predicted_cells(gpu), measured_cell(run)]
    for run in runs.items():
        yield [" ".join(words_of(run[1]["device"])), "", "", "`gapless bench decode`", "–", "–", "–", "–", measured_cell(run)]


HEADER = ["GPU", "capability", "path", "what ran", "predicted step at 1 / 8 / 32 rows, ms", "predicted gain of pipelining, %",
          "predicted first token, ms", "Photon's article: period, ms", "measured step at 1 / 8 / 32 rows, ms (file, commit)"]
