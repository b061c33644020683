"""The arithmetic of docs/scaling.md, worked out from the result files that it names. Needs nothing but Python 3."""

import json
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs/scaling.md").read_text(encoding="utf-8").split())


def result(name):
    return json.loads((ROOT / f"bench/results/{name}.json").read_text())


NEW = round(next(point for point in result("serve-h200")["points"] if (point["concurrency"], point["max_tokens"]) == (16, 3))["requests_per_s"])
KNOWN = round(next(load for load in result("known-picture-h200")["runs"][1]["known picture"] if load["clients"] == 16)["answers_per_s"])
JPEG = next(kind for kind in result("pictures-h200")["kinds"] if (kind["format"], kind["size"]) == ("jpeg", "800x600"))


class ScalingTest(unittest.TestCase):
    def says(self, *texts):
        for text in texts:
            self.assertIn(text, PAGE)

    def test_pictures_a_second(self):
        self.says(f"has not seen | {NEW} |", f"that it knows | {KNOWN:,} |")
        new_ms, known_ms = 1000 / NEW, 1000 / KNOWN
        self.says(f"takes {new_ms:.2f} ms of a GPU and a known one {known_ms:.2f}", f"as much as {round(new_ms / known_ms)} later ones")
        simulated = result("scaling-simulated")
        self.assertEqual((simulated["new_ms"], simulated["known_ms"]), (round(new_ms, 2), round(known_ms, 2)))

    def test_bytes_on_the_wire(self):
        text_bytes = 4 * ((JPEG["bytes"] + 2) // 3)
        mb_per_s = NEW * text_bytes / 1e6
        self.says(f"has {round(JPEG['bytes'] / 1e3)} KB as a JPEG", f"{round(text_bytes / 1e3)} KB as base64",
                  f"{NEW} of them a second are {mb_per_s:.1f} MB/s, or {round(8 * mb_per_s)} Mbit/s")
        self.assertAlmostEqual(8 * 8 * mb_per_s / 1000, 1 / 3, delta=0.02)
        self.says("eight GPUs fill a third of a gigabit", f"a thousand need {round(8 * mb_per_s)} Gbit/s")

    def test_cores(self):
        decode, cut, both = (JPEG["stage_ms"][name]["median"] for name in ("decode", "cut, one core", "cut while decoding"))
        cores = result("pictures-h200")["device"].removeprefix("host, ")
        self.says(f"takes {both:.1f} ms on {cores}, both at once, and {decode + cut:.1f} ms on one core",
                  f"{decode:.1f} of decoding and {cut:.1f} of cutting", f"keep {NEW * (decode + cut) / 1000:.1f} of a core busy")

    def test_how_many_gpus(self):
        self.says(f"10,000 / {NEW} / 0.75 = {round(10_000 / NEW / 0.75)} GPUs",
                  f"10,000 × (0.25 / {NEW} + 0.75 / {KNOWN:,}) / 0.75 = {round(10_000 * (0.25 / NEW + 0.75 / KNOWN) / 0.75)}.")

    def test_what_is_read_from_the_simulation(self):
        rows = {(row["pictures"], row["policy"]): row for row in result("scaling-simulated")["routers"]
                if row["requests_per_s_and_replica"] == 50}
        work = lambda pictures, policy: rows[pictures, policy]["work_ms"]
        least, by_picture, bounded = "least requests of two", "by picture", "by picture, bounded"
        self.assertAlmostEqual(work("sessions", by_picture) / work("sessions", least), 3 / 10, delta=0.02)
        self.assertAlmostEqual(work("popular", by_picture) / work("popular", least), 1 / 7, delta=0.02)
        self.says("does three tenths (sessions) to a seventh (popular) of the work",
                  f"has {rows['popular', by_picture]['busiest_share']:.1f} times what it can do (popular), or "
                  f"{rows['one hot', by_picture]['busiest_share']:.1f} (one hot)")
        for pictures in ("sessions", "popular", "one hot"):
            self.assertLess(work(pictures, bounded), 0.55 * work(pictures, least), "saves half of the work and more")
            self.assertEqual(round(rows[pictures, bounded]["latency_ms"]["p99"]), 15)
        self.says("no replica is over 0.95 busy", "the 99th percentile is 15 ms")
        self.assertLessEqual(max(row["busiest_share"] for (_, policy), row in rows.items() if policy == bounded), 0.955)
        p99 = [round(rows["new", policy]["latency_ms"]["p99"]) for policy in (by_picture, least, bounded)]
        self.says("({} ms at the 99th percentile against {}), and the bound mends that as well ({})".format(*p99))
        devices = [row for row in result("scaling-simulated")["devices"] if row["requests_per_s_and_replica"] == 50]
        self.says("from 2 on nothing changes at 50 a second")
        for pictures in {row["pictures"] for row in devices}:
            chosen = {row["picture_worth"]: row["work_ms"] for row in devices
                      if row["pictures"] == pictures and "picture_worth" in row}
            self.assertEqual({chosen[worth] for worth in chosen if worth >= 2}, {chosen[2]}, pictures)

    def test_two_gpus(self):
        measured = result("serve-2gpu")
        self.says(f"Two answer {measured['ratio']} times as many")
        self.assertGreaterEqual(measured["ratio"], measured["goal"])
        self.assertEqual((measured["goal"], measured["answers_that_differ"]), (1.9, 0))
        # Nobody waited for preprocessing.
        self.assertEqual({run["device_preparing_share"] for run in measured["runs"]["all"]}, {0})


if __name__ == "__main__":
    unittest.main()
