"""scripts/to-wandb where it must refuse, without W&B's client. (With it: test_wandb_runs.py.)"""

import json
import os
import subprocess
import sys
from pathlib import Path

from program import BIN, ProgramTest, main

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/to-wandb"
RECORD = {"cell_key": "0123456789abcdef", "status": "ok"}


class ToWandb(ProgramTest):
    def to_wandb(self, *arguments, code, says, text=""):
        """-S: no installed package is seen, so that the client is missing whatever this Python has."""
        done = subprocess.run(
            [sys.executable, "-S", SCRIPT, *arguments], cwd=self.folder, capture_output=True, text=True, input=text, timeout=60,
            check=False)
        self.assertEqual((done.returncode, done.stdout), (code, ""), f"{arguments}\n{done.stderr}")
        self.assertNotIn("Traceback", done.stderr)
        for part in says:
            self.assertIn(part, done.stderr)
        self.assertEqual([path for path in self.folder.iterdir() if path.name.startswith("wandb")], [])

    def test_a_missing_client_is_told_with_the_command_that_installs_it(self):
        self.to_wandb("-", text=json.dumps(RECORD), code=3, says=["wandb is missing", "-m pip install wandb=="])
        self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--timeline", "-o", "store", "-q")
        self.to_wandb("store", "--vramlab", str(BIN / "vramlab"), code=3, says=["-m pip install wandb=="])

    def test_bad_input_is_told_with_its_place(self):
        good = json.dumps(RECORD)
        for text, says in (
            (good + "\n{\n", ["standard input: line 2", "vramlab export -f jsonl"]),
            (good + '\n\n{"cell_key": "a", "step_s": NaN}', ["line 3", "NaN"]),
            ("[]", ["line 1", "cell_key"]),
            ('{"cell_key": 7}', ["line 1", "cell_key"]),
            ('{"cell_key": "../../a"}', ["line 1", "../../a", "letters"]),
            ('{"cell_key": "a", "losses": ["b"]}', ["line 1", "losses"]),
            ('{"cell_key": "a", "losses": 3}', ["line 1", "losses"]),
            ('{"cell_key": "a", "warmup": "b"}', ["line 1", "warmup"]),
            ('{"cell_key": "a", "created_utc": 5}', ["line 1", "created_utc"]),
            ("\n", ["no cell"]),
        ):
            self.to_wandb("-", text=text, code=2, says=says)
        (self.folder / "latin.jsonl").write_bytes(b'{"cell_key": "\xfc"}')
        self.to_wandb("latin.jsonl", code=2, says=["latin.jsonl", "utf-8"])
        self.to_wandb("none.jsonl", code=2, says=["none.jsonl"])
        self.to_wandb("none", "--vramlab", str(BIN / "vramlab"), code=2, says=["none"])
        self.to_wandb("none", "--vramlab", "no/program", code=3, says=["no/program"])
        self.to_wandb(code=2, says=["STORE"])

    def test_help_says_what_a_run_holds(self):
        done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"})
        for part in ("STORE", "--output", "--project", "timeline/*", "Exit codes", "wandb sync"):
            self.assertIn(part, done.stdout)


if __name__ == "__main__":
    main()
