#!/usr/bin/env python3
"""Holds deploy/Containerfile* against the program: what they install to run it is what it links, no more and no less. Their first
lines say whether they were ever built: CI has no container engine.

container_files_test.py PROGRAM
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROGRAM = None
# In every image of the distribution, or the compiler's.
ALWAYS_THERE = {"libc", "libm", "libgcc_s", "libstdc++", "ld-linux-x86-64"}


def installed(name):
    """Packages that the last stage of a file installs."""
    last = re.split(r"^FROM ", (DEPLOY / name).read_text(), flags=re.M)[-1]
    [words] = re.findall(r"apt-get install -y --no-install-recommends (.*?)&&", last.replace("\\\n", " "), re.S)
    return words.split()


def linked():
    """Libraries that the program names, "libspdlog" of libspdlog.so.1.10."""
    text = subprocess.run(["readelf", "-d", PROGRAM], capture_output=True, text=True, check=True).stdout
    return {found.split(".so")[0] for found in re.findall(r"\(NEEDED\).*\[(.+)\]", text)} - ALWAYS_THERE


def library_of(package):
    """The library that a package is named after: libspdlog1.10 -> libspdlog, libssl3t64 -> libssl, libpcre2-8-0 -> libpcre2-8."""
    package = package.removesuffix("t64").removesuffix("-turbo").replace("jpeg62", "jpeg").replace("jpeg-turbo8", "jpeg")
    if package == "libpng16-16":
        return "libpng16"
    if package.startswith("libcublas-"):
        return "libcublasLt"
    return re.sub(r"-?[\d.]+$", "", package)


class ContainerFilesTest(unittest.TestCase):
    def test_what_is_installed_is_what_the_program_links(self):
        # Part of libssl's packages.
        wanted = linked() - {"libcrypto", "libcublasLt"}
        self.assertTrue(wanted)
        for name, more in (("Containerfile", set()), ("Containerfile.cuda", {"libcublasLt"})):
            with self.subTest(name):
                self.assertEqual(sorted(library_of(package) for package in installed(name)), sorted(wanted | more))

    def test_the_first_line_says_whether_it_was_built(self):
        for path in sorted(DEPLOY.glob("Containerfile*")):
            with self.subTest(path.name):
                self.assertRegex(path.read_text().splitlines()[0], "^# (Built with .* at commit [0-9a-f]{7} |Not built where this was made)")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
