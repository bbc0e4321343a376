"""scripts/slurm: what it would submit, that bad input is named, and, with a Slurm of a few lines that runs what it is
given at once, that parts are measured, stopped in time, queued again and merged."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from program import BIN, ProgramTest, main

ROOT = Path(__file__).resolve().parents[2]
SUITE = "name: parts\ndefaults: {case: resnet50, steps: 3, data: '%s'}\naxes: {batch: [1, 2, 3, 4, 5]}\n"
# sbatch: one job after the other, in the foreground; those that wait for others come later anyway.
SBATCH = """#!/bin/bash
script=${!#}
echo "$*" >>"$SLURM_LOG"
last=$(sed -n 's/^#SBATCH --array=1-//p' "$script")
export SLURM_ARRAY_JOB_ID=7
if [ -n "$last" ]; then
  for ((i = 1; i <= last; i++)); do SLURM_ARRAY_TASK_ID=$i bash "$script" >"${script%/*}/part-$i.log" 2>&1; done
  echo 7
else
  bash "$script" >"${script%/*}/merge.log" 2>&1
  echo "8;cluster"
fi
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>"$SLURM_LOG"
exit 1
"""


class Slurm(ProgramTest):
    program = "vramlab_obedient"

    def setUp(self):
        super().setUp()
        (self.folder / "build/bin").mkdir(parents=True)
        (self.folder / "build/bin/vramlab").symlink_to(BIN.resolve() / self.program)
        (self.folder / "bin").mkdir()
        for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL)):
            (self.folder / "bin" / name).write_text(text, encoding="utf-8")
            (self.folder / "bin" / name).chmod(0o755)
        self.log = self.folder / "slurm.log"
        self.name = self.suite(SUITE % "slow:1")

    def submit(self, *arguments, code=0, path=None):
        path = path or f"{self.folder}/bin:/usr/bin:/bin"
        done = subprocess.run([ROOT / "scripts/slurm", "-b", "build", *arguments], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False, env={**os.environ, "PATH": path, "SLURM_LOG": str(self.log)})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_dry_run_shows_both_scripts_and_submits_nothing(self):
        said = self.submit("-n", "-p", "3", "-t", "02:00:00", "-l", "90", "-s", "--gpus=1", "-s", "--partition=a100", "-o", "out",
                           self.name, "--", "--repeat", "2", "--filter", "batch [1-4]").stdout
        for line in ("#SBATCH --array=1-3", "#SBATCH --time=02:00:00", "#SBATCH --signal=B:TERM@90", "#SBATCH --requeue",
                     "#SBATCH --gpus=1", "#SBATCH --partition=a100", f'#SBATCH --output="{self.folder.resolve()}/out/part-%a.log"'):
            self.assertIn(line + "\n", said)
        self.assertIn('--repeat 2 --filter batch\\ \\[1-4\\] --shard "$SLURM_ARRAY_TASK_ID/3"', said)
        self.assertIn("import --store store part-*/", said)
        self.assertFalse(self.log.exists() or (self.folder / "out").exists())
        self.assertIn("#SBATCH --array=1-5\n", self.submit("-n", "-p", "99", self.name).stdout)  # no part is empty
        for script in said.split("\n\n# "):
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    def test_times_as_slurm_writes_them(self):
        for time_limit, seconds in (("10", 600), ("10:30", 630), ("01:00:00", 3600), ("1-01", 90000), ("1-01:01:01", 90061),
                                    ("08:09:09", 29349)):
            self.submit("-n", "-t", time_limit, "-l", str(seconds - 61), self.name)
            self.submit("-n", "-t", time_limit, "-l", str(seconds - 60), self.name, code=2)

    def test_bad_input_is_named(self):
        for arguments, part in (((), "give a suite"), (("-p", "0", self.name), "--parts"), (("-p", "two", self.name), "two"),
                                (("-l", "-5", self.name), "--lead"), (("-t", "soon", self.name), "soon"),
                                (("-t", "5", self.name), "--lead"), (("-t", "1:30:00:0", self.name), "accepted"),
                                (("-t", "00:02:00", "-l", "60", self.name), "nothing to measure"),
                                (("-s", "gpu", self.name), "no option"), (("nosuchsuite",), "nosuchsuite"),
                                ((self.name, "other"), "one suite at a time"), (("--nonsense", self.name), "--nonsense"),
                                ((self.name, "--", "--nonsense"), "nonsense")):
            self.assertIn(part, self.submit(*arguments, code=2).stderr)
        (self.folder / "tools").mkdir()
        for tool in ("bash", "dirname", "realpath", "basename", "sort", "wc", "date", "env", "sed"):
            (self.folder / "tools" / tool).symlink_to(shutil.which(tool))
        self.assertIn("no sbatch", self.submit(self.name, code=3, path=f"{self.folder}/tools").stderr)
        shutil.rmtree(self.folder / "build")
        (self.folder / "build").mkdir()
        self.assertIn("scripts/build", self.submit(self.name, code=3).stderr)

    def test_parts_are_measured_and_merged(self):
        said = self.submit("-p", "2", "-o", "out here", self.name).stdout
        self.assertIn("job 7 measures 5 cells of suite in 2 parts, job 8 merges them", said)
        self.assertIn("--dependency=afterany:7", self.log.read_text(encoding="utf-8"))
        out = self.folder / "out here"
        self.assertIn("5 of 5 cells", (out / "merge.log").read_text(encoding="utf-8"))
        self.assertEqual(sorted(record["micro_batch"] for record in self.journal(out / "store")[1:]), [1, 2, 3, 4, 5])
        self.assertEqual([len(self.journal(out / f"part-{i}")) - 1 for i in (1, 2)], [3, 2])
        before = (out / "part-1/journal.jsonl").read_bytes()
        self.submit("-p", "2", "-o", "out here", self.name)  # nothing is left to run
        self.assertEqual((out / "part-1/journal.jsonl").read_bytes(), before)

    def test_a_task_whose_time_is_over_is_queued_again(self):
        suite = self.suite(SUITE % f"log:{self.folder}/cells slow:200")
        (self.folder / "out").mkdir()
        script = self.submit("-n", "-p", "1", "-o", "out", suite).stdout.split("\n\n# ")[0]
        (self.folder / "out/array.sh").write_text(script, encoding="utf-8")
        environment = {**os.environ, "PATH": f"{self.folder}/bin:/usr/bin:/bin", "SLURM_LOG": str(self.log),
                       "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
        task = subprocess.Popen(["bash", "out/array.sh"], cwd=self.folder, env=environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (self.folder / "cells").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        task.send_signal(signal.SIGTERM)
        self.assertEqual(task.wait(timeout=60), 4)
        self.assertIn("scontrol requeue 7_1\n", self.log.read_text(encoding="utf-8"))
        done = len(self.journal("out/part-1")) - 1
        self.assertTrue(1 <= done < 5, done)
        subprocess.run(["bash", "out/array.sh"], cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, check=True,
                       timeout=60)
        self.assertEqual(len(self.journal("out/part-1")) - 1, 5)


if __name__ == "__main__":
    main()
