"""A wheel with the CUDA backend, in an environment of its own: what is in it, and that its binary starts by the libraries
that NVIDIA's packages bring. Run by tests/wheel/run_cuda; GAPLESS_TEST_DEVICE says which device is asked."""

import os
import re
import subprocess
import sys
import unittest
import zipfile
from pathlib import Path

import gapless
from gapless import _binary

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "models/tiny/examples/shapes.png"
QUESTION = "How many circles are there?"
DEVICE = os.environ.get("GAPLESS_TEST_DEVICE", "cpu")


def lend_cublas():
    """Where the package nvidia-cublas would put it: half a gigabyte that is here already, as a link. The folders of such links."""
    folders = []
    linked = subprocess.run(["ldd", os.environ["GAPLESS_BINARY_OF_WHEEL"]], capture_output=True, text=True, check=True).stdout
    for name, path in re.findall(r"(libcublasLt\.so\.\d+) => (/\S+)", linked):
        folder = Path(gapless.__file__).parents[1] / f"nvidia/cu{name.rsplit('.', 1)[1]}/lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(os.path.realpath(path))
        folders.append(folder)
    return folders


class CudaWheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folders = lend_cublas()

    def test_nothing_of_cudas_was_copied(self):
        with zipfile.ZipFile(os.environ["GAPLESS_WHEEL"]) as wheel:
            names = wheel.namelist()
        self.assertTrue([name for name in names if name.startswith("gapless.libs/")])
        self.assertEqual([name for name in names if re.search(r"libcu(da|blas|dart)|libnv", name)], [])

    def test_the_binary_finds_all_of_its_libraries(self):
        linked = subprocess.run(["ldd", _binary.path()], capture_output=True, text=True, env=_binary.environment(), check=True).stdout
        self.assertNotIn("not found", linked)
        # From the package, wherever else one may lie on this machine.
        found = re.findall(r"libcublasLt\.so\.\d+ => (\S+)/", linked)
        self.assertEqual([os.path.realpath(folder) for folder in found], [os.path.realpath(folder) for folder in self.folders])

    def test_the_command(self):
        command = Path(sys.executable).with_name("gapless")
        # Nothing of the toolkit's from the environment.
        kept = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        done = subprocess.run([command, "run", "query", "--device", DEVICE, "--image", PICTURE, "--question", QUESTION],
                              capture_output=True, text=True, env=kept, cwd="/")
        self.assertEqual((done.returncode, done.stdout), (0, "2\n"), done.stderr)

    def test_the_package(self):
        with gapless.vl(device=DEVICE) as model:
            self.assertEqual(model.query(PICTURE, QUESTION)["answer"].strip(), "2")
            self.assertEqual(len(model.detect(PICTURE, "circle")["objects"]), 2)

    def test_a_device_that_is_not_there_is_named(self):
        if DEVICE != "cpu":
            self.skipTest("there is a GPU")
        with self.assertRaises(gapless.ServerError) as caught:
            gapless.vl(device="cuda:7")
        self.assertIn("cuda:7", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
