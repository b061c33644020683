"""The wheel itself: what is in it, on which machines it runs, and that it needs nothing else."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from support import CLEAN, PICTURE, QUESTION, ROOT, run_python

WHEEL = Path(os.environ["GAPLESS_WHEEL"])


class WheelTest(unittest.TestCase):
    def run_clean(self, *command, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("GAPLESS_BINARY", "PYTHONPATH")}
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd="/",
                              env={**environment, **variables})

    def test_it_is_for_every_python_and_names_the_oldest_linux(self):
        self.assertRegex(WHEEL.name, r"^gapless-[\d.]+-py3-none-(manylinux_\d+_\d+_\w+\.?)+\.whl$")
        version = re.search(r"project\(gapless VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertIn(f"-{version}-", WHEEL.name)
        shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(WHEEL)], capture_output=True, text=True)
        self.assertRegex(shown.stdout, r"consistent with\s+the following platform tag:\s+\"manylinux_")

    def test_it_holds_the_binary_the_model_the_types_and_the_licence(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = {name for name in wheel.namelist()}
            mode = wheel.getinfo("gapless/_installed/bin/gapless").external_attr >> 16
        self.assertTrue(mode & 0o111)
        for name in ("gapless/__init__.py", "gapless/py.typed", "gapless/_installed/share/gapless/models/tiny/model.safetensors",
                     "gapless/_installed/share/gapless/models/tiny/tokenizer.json"):
            self.assertIn(name, names)
        self.assertTrue(any(name.endswith("/licenses/LICENSE") for name in names))
        self.assertFalse([name for name in names if "/tests/" in name or name.endswith((".cpp", ".h"))])

    def test_pip_install_of_the_repository_puts_the_same_files_there(self):
        """That compiles everything first; here it is the build of the tests that is installed, by the same rules."""
        build = Path(os.environ["GAPLESS_TEST_BINARY"]).parents[1]
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(WHEEL) as wheel:
            subprocess.run(["cmake", "--install", str(build), "--prefix", folder], capture_output=True, check=True)
            installed = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}
            place = "gapless/_installed/"
            self.assertEqual(installed, {name.removeprefix(place) for name in wheel.namelist()
                                         if name.startswith(place) and not name.endswith("/")})

    def test_libraries_that_not_every_linux_has_come_along(self):
        binary = next(CLEAN.glob("lib/python*/site-packages/gapless/_installed/bin/gapless"))
        linked = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("not found", linked)
        found = dict(re.findall(r"(\S+) => (\S+)", linked))
        self.assertGreater(len(found), 5)
        for name in ("jpeg", "png16", "webp", "spdlog", "fmt", "ssl", "crypto", "pcre2", "utf8proc"):
            paths = [path for library, path in found.items() if library.startswith(f"lib{name}")]
            self.assertTrue(paths, name)
            for path in paths:
                self.assertTrue(os.path.realpath(path).startswith(os.path.realpath(CLEAN)), path)

    def test_the_command_in_an_environment_that_has_nothing_else(self):
        listed = self.run_clean(CLEAN / "bin/python", "-m", "pip", "list", "--format=freeze").stdout
        names = {line.split("==")[0].lower() for line in listed.splitlines()}
        self.assertEqual(names - {"pip", "setuptools"}, {"gapless", "pillow"})
        for command in ([CLEAN / "bin/gapless"], [CLEAN / "bin/python", "-m", "gapless"]):
            done = self.run_clean(*command, "run", "query", "--image", PICTURE, "--question", QUESTION)
            self.assertEqual((done.returncode, done.stdout), (0, "2\n"), done.stderr)
        done = self.run_clean(CLEAN / "bin/gapless", "nonsense")
        self.assertEqual(done.returncode, 2, "its exit statuses are the binary's")
        done = self.run_clean(CLEAN / "bin/gapless", "--version", GAPLESS_BINARY="/nothing/there")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nothing/there is not a program (GAPLESS_BINARY)", done.stderr)

    def test_the_package_in_an_environment_that_has_nothing_else(self):
        done = run_python(f"""
import gapless
with gapless.vl(device="cpu") as model:
    print(model.query({str(PICTURE)!r}, {QUESTION!r})["answer"].strip(), gapless.__version__)
""", python=CLEAN / "bin/python", cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split()[0], "2")

    def test_types_are_whole_and_reach_the_users(self):
        for what in ([str(ROOT / "python/gapless")], [str(ROOT / "tests/wheel/typed_use.py")]):
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", *what], capture_output=True,
                                  text=True, cwd=ROOT / "tests/wheel")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
