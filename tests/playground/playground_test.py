"""The playground in a headless Chromium, against `gapless serve` with the shipped model.

    GAPLESS_BINARY=... GAPLESS_SCREENSHOTS=FOLDER python3 tests/playground/playground_test.py

Without Chromium, chromedriver and Node.js it exits with 77 (skipped), or fails where CI is set. With GAPLESS_SCREENSHOTS the pages'
pictures are kept there.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))
from browser import Browser, is_installed
from serving import PICTURE, ROOT, Server


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

    def page(self, width=1200, height=1000, dark=False, touch=False, server=None, before=None, greeted=True):
        """`before`: a script that runs before the page's own."""
        browser = Browser(dark=dark, downloads=self.folder)
        self.addCleanup(browser.close)
        browser.size(width, height, touch)
        if before:
            browser.devtools("Page.addScriptToEvaluateOnNewDocument", {"source": before})
        browser.open((server or self.server).url + "/")
        if greeted:
            browser.wait_for("document.getElementById('server').textContent.includes('context')")
        return browser

    def serve(self, *options):
        server = Server(*options)
        self.addCleanup(server.stop)
        return server

    def tabs(self, browser):
        return browser.run("return [...document.getElementById('tabs').children].filter((tab) => !tab.hidden)"
                           ".map((tab) => tab.textContent)")

    def drop(self, browser, *files):
        """`files`: names and base64."""
        browser.run("""
            const transfer = new DataTransfer();
            for (const [name, text] of arguments[0]) {
              const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
              transfer.items.add(new File([bytes], name));
            }
            document.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));""",
                    [[name, base64.b64encode(data).decode()] for name, data in files])

    def num_pictures(self, browser):
        return browser.run("return document.querySelectorAll('#strip-of-pictures li').length")

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

    def test_enter_that_ends_an_input_methods_word_sends_nothing(self):
        browser = self.page()
        press = """
            document.getElementById("text").value = "How many?";
            document.getElementById("text").dispatchEvent(new KeyboardEvent("keydown",
              {key: "Enter", isComposing: arguments[0], bubbles: true, cancelable: true}));
            return document.getElementById("go").disabled;"""
        self.assertFalse(browser.run(press, True))
        self.assertTrue(browser.run(press, False), "a request is under way")
        browser.wait_for("!document.getElementById('metrics').hidden")

    def test_places_are_clicked_and_dragged(self):
        browser = self.page()
        browser.click("#sample")
        browser.wait_for("document.getElementById('picture').complete && !document.getElementById('frame').hidden")
        browser.keys("3")  # point
        move = """
            const frame = document.getElementById("frame"), box = frame.getBoundingClientRect();
            frame.setPointerCapture = () => {};
            for (const [name, x, y] of arguments[0]) {
              frame.dispatchEvent(new PointerEvent(name, {bubbles: true, cancelable: true, button: 0, pointerId: 1,
                clientX: box.left + x * box.width, clientY: box.top + y * box.height}));
            }"""
        browser.run(move, [["pointerdown", 0.25, 0.5], ["pointerup", 0.25, 0.5]])
        browser.run(move, [["pointerdown", 0.75, 0.75], ["pointermove", 0.5, 0.5], ["pointerup", 0.25, 0.25]])
        self.assertEqual(browser.run("return [...document.getElementById('places').children].map((one) => one.tagName)"), ["line", "rect"])
        code = self.code_of(browser, "curl")
        refs = json.loads(re.search(r'"spatial_refs": (\[\[.*?\]\])', code)[1])
        for found, meant in zip(refs, ([0.25, 0.5], [0.25, 0.25, 0.75, 0.75]), strict=True):
            for one, other in zip(found, meant, strict=True):
                self.assertAlmostEqual(one, other, delta=0.01)
        browser.keys("circle\n", "#text")
        browser.wait_for("document.querySelectorAll('#found li').length > 0")
        browser.run("document.activeElement.blur()")
        browser.keys("4")  # detect takes none
        self.assertNotIn("spatial_refs", self.code_of(browser, "curl"))
        browser.keys("3")
        browser.click("#forget-places")
        self.assertNotIn("spatial_refs", self.code_of(browser, "curl"))
        self.assert_sound(browser)

    def test_reasoning_is_asked_for_where_the_model_can(self):
        browser = self.page()
        self.assertTrue(browser.run("return document.getElementById('reasoning-row').hidden"), "this model cannot")
        browser = self.page(server=self.serve("--model", "random:moondream3-small:5"))
        browser.run("document.getElementById('max_tokens').value = '8'; document.getElementById('reasoning').checked = true")
        browser.keys("How many?\n", "#text")
        browser.wait_for("!document.getElementById('thoughts').hidden")
        self.assertTrue(browser.run("return document.getElementById('thoughts-text').textContent"))
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
        self.assertNotEqual(browser.run("return getComputedStyle(document.querySelector('#go kbd')).display"), "none")
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
        browser = self.page(width=390, height=844, touch=True)
        self.detect(browser)
        browser.screenshot(self.folder / "phone.png")
        # Keys are named where there is a keyboard.
        self.assertEqual(browser.run("return getComputedStyle(document.querySelector('#go kbd')).display"), "none")
        # What was asked and what was found are on the screen together.
        top, bottom = browser.run("return [document.getElementById('text').getBoundingClientRect().top,"
                                  "document.getElementById('found').getBoundingClientRect().bottom]")
        self.assertLessEqual(bottom - top, 844)
        browser.run("document.getElementById('device').scrollIntoView()")
        browser.screenshot(self.folder / "phone-timeline.png")
        self.assert_sound(browser)

    def test_a_segment_is_drawn_in_its_box(self):
        # The model that ships has not the skill: it is made up here, and the answer too.
        browser = self.page(before="""
            const real = window.fetch;
            const bbox = {x_min: 0.25, y_min: 0.5, x_max: 0.75, y_max: 0.75};
            const path = ["M 0 0", " L 1 0 0.5 1", " Z"];
            const events = [{type: "bbox", bbox}, ...path.map((chunk) => ({type: "path_delta", chunk, completed: false})),
              {type: "final", completed: true, path: path.join(""), bbox,
               metrics: {ttft_ms: 1, input_tokens: 1, output_tokens: 1, decode_time_ms: 1}}];
            window.fetch = async (url, options) => url === "/model_info" ?
              new Response(JSON.stringify({skills: ["query", "caption", "point", "detect", "segment"]})) :
              url !== "/v1/segment" ? real(url, options) :
              new Response(events.map((event) => "data: " + JSON.stringify(event) + "\\n\\n").join(""));""")
        self.assertEqual(self.tabs(browser), ["Query", "Caption", "Point", "Detect", "Segment"])
        browser.click("#sample")
        browser.wait_for("!document.getElementById('frame').hidden")
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

    def test_a_segment_of_a_real_model_is_drawn_as_it_comes(self):
        server = self.serve("--model", "random:moondream3-small:2")
        browser = self.page(server=server)
        browser.click("#sample")
        browser.wait_for("!document.getElementById('frame').hidden")
        browser.run("document.getElementById('max_tokens').value = '60'")
        browser.run("window.drawn = []; new MutationObserver(() => {"
                    "  const path = document.querySelector('#overlay svg path'); if (path) drawn.push(path.getAttribute('d')); })"
                    ".observe(document.getElementById('overlay'), {childList: true})")
        browser.keys("5")
        browser.keys("thing\n", "#text")
        browser.wait_for("!document.getElementById('metrics').hidden")
        drawn = browser.run("return drawn")
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        answer = self.post(server, "/v1/segment", {"image_url": picture, "object": "thing", "settings": {"max_tokens": 60}})
        self.assertEqual(drawn[-1], answer["path"])
        for before, after in zip(drawn, drawn[1:]):
            self.assertTrue(after.startswith(before), (before, after))
        self.assert_sound(browser)

    def test_every_skill_of_the_shipped_moondream_3(self):
        server = self.serve("--model", str(ROOT / "models/tiny3"), "--compute", "float32")
        browser = self.page(server=server)
        self.assertEqual(self.tabs(browser), ["Query", "Caption", "Point", "Detect", "Segment"])
        browser.click("#sample")
        browser.wait_for("!document.getElementById('frame').hidden")
        found = "document.querySelectorAll('#found li').length"

        def ask(tab, text, seen):
            """What `seen` says once it is true and the answer is whole."""
            browser.run("document.activeElement.blur()")
            browser.keys(tab)
            if text:
                browser.run("document.getElementById('text').value = ''")
                browser.keys(text + "\n", "#text")
            else:
                browser.click("#go")
            value = browser.wait_for(seen)
            browser.wait_for("!document.getElementById('metrics').hidden && !document.getElementById('go').disabled")
            return value

        answer = "document.getElementById('answer').textContent"
        self.assertEqual(ask("1", "How many triangles are there?", answer), "1")
        browser.run("document.getElementById('reasoning').checked = true")
        thoughts = "document.getElementById('thoughts').hidden ? '' : document.getElementById('thoughts-text').textContent"
        self.assertIn("triangles", ask("1", "How many triangles are there?", thoughts))
        self.assertEqual(browser.run("return " + answer), "1")
        self.assertEqual(browser.run("return " + found), 1, "where it pointed")
        ask("2", "", answer)
        self.assertIn("circle", browser.run("return " + answer))
        ask("3", "triangle", found)
        self.assertEqual(browser.run("return " + found), 1)
        ask("4", "triangle", "document.querySelectorAll('#overlay rect').length")
        self.assertEqual(browser.run("return document.querySelectorAll('#overlay rect').length"), 1)
        ask("5", "cross", "document.querySelectorAll('#overlay svg path').length")
        drawn = browser.run("return document.querySelector('#overlay svg path').getAttribute('d')")
        self.assertRegex(drawn, r"^M [\d.]+ [\d.]+( L [\d.]+ [\d.]+){11} Z$", "a cross has twelve corners")
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        self.assertEqual(drawn, self.post(server, "/v1/segment", {"image_url": picture, "object": "cross"})["path"])
        self.assert_sound(browser)

    def test_no_tab_for_a_skill_that_the_model_has_not(self):
        browser = self.page()
        self.assertEqual(self.tabs(browser), ["Query", "Caption", "Point", "Detect"])
        browser.keys("5")
        self.assertEqual(browser.run("return document.querySelector('[aria-selected=true]').dataset.skill"), "query")
        browser.run("document.querySelector('[data-skill=query]').focus()")
        browser.keys("\ue012", "[data-skill=query]")  # the left arrow goes round
        self.assertEqual(browser.run("return document.querySelector('[aria-selected=true]').dataset.skill"), "detect")
        self.assert_sound(browser)

    def test_a_text_model_is_talked_to(self):
        server = self.serve("--model", str(ROOT / "tests/golden/llama/qwen3"))
        browser = self.page(server=server)
        self.assertEqual(self.tabs(browser), ["Chat"])
        self.assertTrue(browser.run("return document.getElementById('stage').hidden"))
        browser.run("document.getElementById('max_tokens').value = 8")
        browser.keys("Hello?\n", "#text")
        browser.wait_for("!document.getElementById('metrics').hidden")
        expected = self.post(server, "/v1/chat/completions",
                             {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 8})
        self.assertEqual(browser.run("return document.getElementById('answer').textContent"),
                         expected["choices"][0]["message"]["content"])
        self.assertIn("tokens out8", browser.run("return document.getElementById('metrics').textContent"))
        self.assert_sound(browser)

    def test_a_model_without_a_skill_says_so(self):
        browser = self.page(server=self.serve("--model", str(ROOT / "tests/golden/llama/llama")))
        self.assertEqual(self.tabs(browser), [])
        self.assertTrue(browser.run("return document.getElementById('form').hidden"))
        self.assertFalse(browser.run("return document.getElementById('no-skill').hidden"))
        self.assert_sound(browser)

    def test_several_pictures(self):
        browser = self.page()
        small = (ROOT / "models/tiny/examples/small.png").read_bytes()
        browser.click("#sample")
        browser.wait_for("!document.getElementById('frame').hidden")
        self.drop(browser, ("small.png", small))
        browser.wait_for("document.querySelectorAll('#strip-of-pictures li').length == 2")
        self.assertIn("small.png", browser.run("return document.getElementById('picture-name').textContent"))
        self.assertEqual(browser.run("return document.getElementById('about').textContent"), "about all 2 pictures")
        self.assertIn("Which picture", browser.run("return document.getElementById('examples').textContent"))
        question = "Which picture has more circles?"
        browser.run("document.getElementById('max_tokens').value = 16")
        browser.keys(question + "\n", "#text")
        browser.wait_for("!document.getElementById('metrics').hidden")
        parts = [{"type": "image_url", "image_url": {"url": base64.b64encode(data).decode()}}
                 for data in (PICTURE.read_bytes(), small)]
        expected = self.post(self.server, "/v1/chat/completions", {"max_tokens": 16, "messages": [
            {"role": "user", "content": [*parts, {"type": "text", "text": question}]}]})
        self.assertEqual(browser.run("return document.getElementById('answer').textContent"),
                         expected["choices"][0]["message"]["content"])
        browser.screenshot(self.folder / "several.png")
        # Boxes are of the picture that is shown: the first one has two circles.
        browser.click("#strip-of-pictures li:first-child button")
        browser.click("[data-skill=detect]")
        self.assertEqual(browser.run("return document.getElementById('about').textContent"), "about the picture that is shown")
        browser.run("document.getElementById('text').value = ''")
        browser.keys("circle\n", "#text")
        browser.wait_for("document.querySelectorAll('#overlay rect').length == 2")
        browser.click("#strip-of-pictures li:first-child [aria-label]")
        self.assertEqual(self.num_pictures(browser), 1)
        self.assertIn("small.png", browser.run("return document.getElementById('picture-name').textContent"))
        self.assertEqual(browser.run("return document.querySelectorAll('#overlay rect').length"), 0)
        browser.click("#strip-of-pictures [aria-label]")
        self.assertFalse(browser.run("return document.getElementById('drop').hidden"))
        self.assert_sound(browser)

    def test_what_is_no_picture_is_refused_by_its_bytes(self):
        browser = self.page()
        refused = "document.getElementById('refused').textContent"
        self.drop(browser, ("film.bmp", b"BM" + bytes(50)), ("page.png", b"<html>"), ("named.txt", PICTURE.read_bytes()),
                  ("empty.jpg", b""))
        browser.wait_for(refused)
        self.assertEqual(browser.run("return " + refused).count("is no JPEG, PNG, WebP or GIF picture"), 3)
        for name in ("film.bmp", "page.png", "empty.jpg"):
            self.assertIn(name, browser.run("return " + refused))
        browser.wait_for("document.querySelectorAll('#strip-of-pictures li').length == 1")
        browser.keys("Hello?\n", "#text")
        browser.wait_for("!document.getElementById('metrics').hidden")
        gif = base64.b64decode("R0lGODdhAQABAIAAAP///////ywAAAAAAQABAAACAkQBADs=")
        self.drop(browser, *[(f"{i}.gif", gif) for i in range(8)])
        browser.wait_for(refused + ".includes('7.gif is one too many')")
        self.assertEqual(self.num_pictures(browser), 8)
        self.assert_sound(browser)

    def test_examples_are_filled_in(self):
        browser = self.page()
        browser.click("[data-skill=detect]")
        browser.click("#examples button:nth-child(2)")
        self.assertEqual(browser.run("return document.getElementById('text').value"), "heart")
        browser.click("[data-skill=caption]")
        self.assertEqual(browser.run("return document.getElementById('examples').children.length"), 0)

    def test_the_key_is_asked_for_where_one_is_needed(self):
        browser = self.page()
        self.assertTrue(browser.run("return document.getElementById('key-row').hidden"))
        server = self.serve("--api-key", "secret")
        browser = self.page(server=server, greeted=False)
        browser.wait_for("!document.getElementById('key-row').hidden")
        browser.screenshot(self.folder / "key.png")
        browser.keys("secret\n", "#key")
        browser.wait_for("document.getElementById('server').textContent.includes('context')")
        self.assertEqual(self.tabs(browser), ["Query", "Caption", "Point", "Detect"])
        browser.keys("Hello?\n", "#text")
        browser.wait_for("!document.getElementById('metrics').hidden")
        self.assertIn('Bearer $KEY', self.code_of(browser, "curl"))
        # The browser itself notes each answer of 401.
        self.assertTrue(all("401" in entry["message"] for entry in browser.complaints()))

    # Code

    def code_of(self, browser, language):
        return browser.run("document.getElementById('code').open = true;"
                           "document.querySelector(`#languages input[value=${arguments[0]}]`).click();"
                           "document.getElementById('code').dispatchEvent(new Event('toggle'));"
                           "return document.getElementById('snippet').textContent", language)

    def run_code(self, language, code, folder):
        command = {"curl": ["bash", "-e", "-o", "pipefail"], "Python": [sys.executable],
                   "Node": ["node", "--input-type=module"]}[language]
        done = subprocess.run(command, input=code, cwd=folder, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{folder}"})
        self.assertEqual(done.returncode, 0, code + done.stderr)
        return done.stdout

    def test_the_code_asks_the_same(self):
        """Of each skill, with quotes in the text, and about several pictures."""
        languages = ["curl", "Python", "Node"]
        folder = Path(tempfile.mkdtemp(prefix="gapless-code-"))
        self.addCleanup(shutil.rmtree, folder)
        stand_ins(folder)
        browser = self.page()
        browser.click("#sample")
        browser.wait_for("!document.getElementById('frame').hidden")
        browser.run("document.getElementById('max_tokens').value = 20")
        small = ROOT / "models/tiny/examples/small.png"
        # To the second question the model says nothing; that it arrives whole shows in the number of its tokens.
        for skill, text in (("query", "What's \"in\" the picture?"), ("query", "Is 'it' \"in\" $HOME \\n `ls` \u00e9?"),
                            ("caption", ""), ("point", "circle"), ("detect", "circle"),
                            ("both", "Which picture has 'more' circles?")):
            if skill == "both":
                browser.click("[data-skill=query]")
                self.drop(browser, ("small.png", small.read_bytes()))
                browser.wait_for("document.querySelectorAll('#strip-of-pictures li').length == 2")
            else:
                browser.click(f"[data-skill={skill}]")
            browser.run("document.getElementById('text').value = arguments[0]", text)
            shutil.copy(PICTURE, folder / "PICTURE-1.png")
            shutil.copy(small, folder / "PICTURE-2.png")
            browser.click("#go")
            browser.wait_for("!document.getElementById('go').disabled && !document.getElementById('metrics').hidden")
            answer = browser.run("return document.getElementById('answer').textContent").strip()
            found = browser.run("return [...document.querySelectorAll('#found li')].map((one) => one.textContent)")
            self.assertTrue(answer or found or "HOME" in text)
            metrics = browser.run("return document.getElementById('metrics').textContent")
            tokens_in = int(re.search(r"tokens in(\d+)tokens out", metrics)[1])
            for language in languages:
                with self.subTest(skill=skill, language=language):
                    output = self.run_code(language, self.code_of(browser, language), folder)
                    if language == "curl" and skill != "both":
                        self.assertIn(f'"input_tokens":{tokens_in},', output)
                    elif language == "Node":
                        self.assertRegex(output, rf"(input|prompt)_tokens: {tokens_in},")
                    if answer and language != "Node":
                        # Streamed as pieces by curl, whole in the last event; of a chat in pieces only.
                        pieces = re.findall(r'"content":"((?:[^"\\]|\\.)*)"', output)
                        self.assertIn(answer, "".join(pieces) if skill == "both" and language == "curl" else output.replace("\\u00e9", "é"))
                    elif answer:
                        self.assertIn(answer.split()[0], output)
                    numbers = [float(number) for line in found for number in line.split()]
                    shown = [float(number) for number in re.findall(r"[xy](?:_\w+)?['\"]?: ?(\d\.\d+)", output)]
                    self.assertEqual(len(shown), len(numbers), output)
                    for one, other in zip(shown, numbers):
                        self.assertAlmostEqual(one, other, delta=0.0006)
        browser.run("document.getElementById('code').scrollIntoView()")
        browser.screenshot(self.folder / "code.png")
        self.assert_sound(browser)

    def test_the_code_on_a_phone(self):
        browser = self.page(width=390, height=844, touch=True, dark=True)
        self.detect(browser)
        self.code_of(browser, "Python")
        browser.run("document.getElementById('code').scrollIntoView()")
        browser.screenshot(self.folder / "phone-code.png")
        self.assert_sound(browser)

    def post(self, server, path, body):
        request = urllib.request.Request(server.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)


def stand_ins(folder):
    """What the Python code imports: the package of this repository, which files need no Pillow for, and so much of
    OpenAI's client as is called (tests/clients has the real one)."""
    (folder / "PIL").mkdir()
    (folder / "PIL/__init__.py").write_text("")
    (folder / "PIL/Image.py").write_text("class Image: pass\n")
    (folder / "gapless-0.dist-info").mkdir()
    (folder / "gapless-0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: gapless\nVersion: 0\n")
    (folder / "openai.py").write_text("""
import json, types, urllib.request
class OpenAI:
    def __init__(self, base_url, api_key):
        self.url = base_url
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self.create))
        self.models = types.SimpleNamespace(list=lambda: self.ask("/models", None))
    def ask(self, path, body):
        data = None if body is None else json.dumps(body).encode()
        text = urllib.request.urlopen(urllib.request.Request(self.url + path, data)).read()
        return json.loads(text, object_hook=lambda fields: types.SimpleNamespace(**fields))
    def create(self, model, messages, extra_body={}, **fields):
        return self.ask("/chat/completions", {"model": model, "messages": messages, **fields, **extra_body})
""")


if __name__ == "__main__":
    if not is_installed() or not shutil.which("node"):
        print("tests/playground: no Chromium with chromedriver here, or no Node.js", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 77)
    unittest.main()
