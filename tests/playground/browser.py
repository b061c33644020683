"""A headless Chromium through chromedriver (W3C WebDriver): HTTP and JSON, no packages needed."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def is_installed():
    return bool((shutil.which("chromium") or shutil.which("google-chrome")) and shutil.which("chromedriver"))


def start_driver():
    """The process, and its port. The driver takes a free port of IPv4 and then the same one of IPv6, which somebody else may have
    by now: then it ends, and another one finds another port."""
    for _ in range(5):
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return driver, found.group(1)
        driver.terminate()
        driver.wait()
        driver.stdout.close()
    raise RuntimeError("chromedriver did not start")


class Browser:
    def __init__(self, dark=False, downloads=None):
        self.driver, port = start_driver()
        self.url = f"http://127.0.0.1:{port}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"args": arguments, "binary": shutil.which("chromium") or shutil.which("google-chrome")}
        if downloads:
            options["prefs"] = {"download.default_directory": str(downloads)}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self.url += "/" + self._call("", {"capabilities": wanted})["sessionId"]

    def _call(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["value"]

    def close(self):
        try:
            self._call("", method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def open(self, url):
        self._call("/url", {"url": url})

    def size(self, width, height, touch=False):
        """Of the page, not the window: a phone is narrower than any window."""
        self.devtools("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.devtools("Emulation.setTouchEmulationEnabled", {"enabled": touch})

    def devtools(self, command, parameters):
        return self._call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script, *arguments):
        """The value that the script returns."""
        return self._call("/execute/sync", {"script": script, "args": list(arguments)})

    def keys(self, text, selector="body"):
        element = self._call("/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._call(f"/element/{element}/value", {"text": text})

    def click(self, selector):
        element = self._call("/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._call(f"/element/{element}/click", {})

    def wait_for(self, script, seconds=60):
        """Until the script returns something true, and that."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.run("return " + script):
                return value
            time.sleep(0.1)
        raise AssertionError("not in time: " + script)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._call("/screenshot")))

    def complaints(self):
        """What the page logged as errors."""
        return [entry for entry in self._call("/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]
