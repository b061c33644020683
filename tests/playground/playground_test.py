"""The playground in a headless Chromium, against `gapless serve` with the shipped model.

    GAPLESS_BINARY=... GAPLESS_SCREENSHOTS=FOLDER python3 tests/playground/playground_test.py

Without Chromium and chromedriver it exits with 77 (skipped), or fails where CI is set. With GAPLESS_SCREENSHOTS the pages'
pictures are kept there.
"""

import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))
from browser import Browser, is_installed
from serving import Server


class PlaygroundTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        folder = os.environ.get("GAPLESS_SCREENSHOTS")
        cls.kept = tempfile.TemporaryDirectory()
        cls.folder = Path(folder or cls.kept.name)
        cls.folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.kept.cleanup()

    def page(self, width=1200, height=960, dark=False):
        browser = Browser(dark=dark, downloads=self.folder)
        self.addCleanup(browser.close)
        browser.size(width, height)
        browser.open(self.server.url + "/")
        browser.wait_for("document.getElementById('server').textContent.includes('context')")
        return browser

    def detect(self, browser):
        browser.click("#sample")
        browser.wait_for("document.getElementById('picture').complete && !document.getElementById('frame').hidden")
        browser.keys("4")  # the tab, from the keyboard
        browser.keys("circle\n", "#text")
        browser.wait_for("document.querySelectorAll('#overlay rect').length > 0")
        browser.wait_for("document.querySelectorAll('#found li').length > 0")

    def assert_sound(self, browser):
        self.assertEqual(browser.complaints(), [])
        # Nothing sticks out of the page sideways.
        self.assertLessEqual(browser.run("return document.documentElement.scrollWidth - innerWidth"), 0)

    def test_a_streamed_answer_and_stop(self):
        browser = self.page()
        browser.keys("Hello?\n", "#text")
        browser.wait_for("document.getElementById('answer').textContent.length > 0")
        browser.wait_for("!document.getElementById('metrics').hidden")
        self.assert_sound(browser)

    def test_light_and_the_timeline(self):
        browser = self.page()
        self.detect(browser)
        self.assertFalse(browser.run("return document.getElementById('device').hidden"))
        browser.run("document.getElementById('load').value = '4';"
                    "document.getElementById('load').dispatchEvent(new Event('change'))")
        browser.wait_for("document.querySelectorAll('#strip .sampling').length > 10")
        depth = lambda: json.loads(self.server.get("/debug/timeline"))["depth"]
        self.assertEqual(depth(), 2)
        # The switch, from the keyboard; the bubbles come with it.
        browser.run("document.activeElement.blur()")
        browser.keys("b")
        browser.wait_for("document.querySelector('#depths input[value=\"1\"]').checked")
        self.assertEqual(depth(), 1)
        browser.wait_for("document.querySelectorAll('#strip .bubble').length > 10")
        browser.wait_for("document.querySelectorAll('#history .blocking').length > 5")
        browser.keys("b")
        browser.wait_for("document.querySelectorAll('#history .pipelined').length > 10")
        self.assertEqual(depth(), 2)
        browser.screenshot(self.folder / "light.png")
        self.assert_sound(browser)

    def test_the_trace_is_downloaded(self):
        browser = self.page()
        browser.keys("Hello?\n", "#text")
        browser.wait_for("!document.getElementById('metrics').hidden")
        browser.wait_for("!document.getElementById('device').hidden")
        browser.devtools("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(self.folder)})
        file = self.folder / "gapless-trace.json"
        file.unlink(missing_ok=True)
        browser.click("#trace")
        for _ in range(100):
            if file.exists():
                break
            time.sleep(0.1)
        names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
        self.assertTrue({"prefill", "decode", "sampling", "commit"} <= names, names)
        file.unlink()

    def test_dark(self):
        browser = self.page(dark=True)
        self.assertTrue(browser.run("return matchMedia('(prefers-color-scheme: dark)').matches"))
        self.detect(browser)
        browser.screenshot(self.folder / "dark.png")
        self.assert_sound(browser)

    def test_phone(self):
        browser = self.page(width=390, height=844)
        self.detect(browser)
        browser.screenshot(self.folder / "phone.png")
        browser.run("document.getElementById('device').scrollIntoView()")
        browser.screenshot(self.folder / "phone-timeline.png")
        self.assert_sound(browser)

    def test_a_segment_is_drawn_in_its_box(self):
        browser = self.page()
        browser.click("#sample")
        browser.wait_for("!document.getElementById('frame').hidden")
        # No model that is served has the skill: the answer is made here.
        browser.run("""
            const real = window.fetch;
            window.fetch = async (url, options) => url !== "/v1/segment" ? real(url, options) :
              new Response(JSON.stringify({path: "M 0 0 L 1 0 L 0.5 1 Z",
                bbox: {x_min: 0.25, y_min: 0.5, x_max: 0.75, y_max: 0.75},
                metrics: {ttft_ms: 1, input_tokens: 1, output_tokens: 1, decode_time_ms: 1}}));""")
        browser.keys("5")
        browser.keys("thing\n", "#text")
        box = browser.wait_for("(() => { const path = document.querySelector('#overlay svg path'); if (!path) return 0;"
                               "const inner = path.getBoundingClientRect();"
                               "const all = document.getElementById('overlay').getBoundingClientRect();"
                               "return [(inner.left - all.left) / all.width, (inner.top - all.top) / all.height,"
                               "(inner.right - all.left) / all.width, (inner.bottom - all.top) / all.height]; })()")
        for value, expected in zip(box, (0.25, 0.5, 0.75, 0.75)):
            self.assertAlmostEqual(value, expected, delta=0.02)
        self.assert_sound(browser)


if __name__ == "__main__":
    if not is_installed():
        print("tests/playground: no Chromium with chromedriver here", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 77)
    unittest.main()
