"""What the package gives the binary along."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from gapless import _binary


class EnvironmentTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)

    def test_cudas_libraries_are_found_where_nvidias_packages_put_them(self):
        site = self.folder / "a [site]"
        library = site / "nvidia/cu13/lib/libcublasLt.so.13"
        library.parent.mkdir(parents=True)
        with mock.patch.object(sys, "path", [str(site), "", str(self.folder)]), mock.patch.dict(os.environ):
            os.environ.pop("LD_LIBRARY_PATH", None)
            self.assertNotIn("LD_LIBRARY_PATH", _binary.environment(), "there is none yet")
            library.touch()
            self.assertEqual(_binary.environment()["LD_LIBRARY_PATH"], str(library.parent))
            os.environ["LD_LIBRARY_PATH"] = "/chosen"
            self.assertEqual(_binary.environment()["LD_LIBRARY_PATH"], f"/chosen:{library.parent}")

    def test_certificates_that_somebody_chose_are_kept(self):
        with mock.patch.dict(os.environ, {"SSL_CERT_FILE": "/mine.pem"}):
            self.assertEqual(_binary.environment()["SSL_CERT_FILE"], "/mine.pem")


if __name__ == "__main__":
    unittest.main()
