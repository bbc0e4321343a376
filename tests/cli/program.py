"""What the tests of the command line share: running the program, and suites and stores in a scratch folder."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else Path("build/cpu/bin")


def strict_json(text):
    """Refuses NaN and Infinity, which Python's reader takes otherwise."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class ProgramTest(unittest.TestCase):
    """A test with a scratch folder that the program runs in."""

    program = "vramlab"

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def command(self, *arguments):
        return [str(BIN / self.program), *map(str, arguments)]

    def run_program(self, *arguments, code=0, **environment):
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=120, check=False)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def refuses(self, *arguments, says, code=2):
        """Ends with the code, says something on stderr with every part, nothing on stdout."""
        done = self.run_program(*arguments, code=code)
        self.assertEqual(done.stdout, "", arguments)
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, done.stderr, arguments)

    def comma_locale(self):
        """What makes numbers have decimal commas, in a locale compiled for the test; skips where none can be."""
        if not shutil.which("localedef"):
            self.skipTest("no localedef")
        done = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(self.folder / "de_DE.UTF-8")],
                              capture_output=True, check=False)
        if not (self.folder / "de_DE.UTF-8").exists():
            self.skipTest(f"localedef makes no de_DE: {done.stderr.decode()}")
        return {"LOCPATH": str(self.folder), "LC_ALL": "de_DE.UTF-8", "LC_NUMERIC": "C"}

    def suite(self, text):
        path = self.folder / "suite.yaml"
        path.write_text(text, encoding="utf-8")
        return "./suite.yaml"

    def journal(self, store):
        lines = (self.folder / store / "journal.jsonl").read_text(encoding="utf-8").splitlines()
        return [strict_json(line) for line in lines]


def main():
    unittest.main(module="__main__", verbosity=2)
