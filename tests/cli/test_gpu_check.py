"""scripts/gpu-check: a dry run leaves what a run on a card leaves; a phase that fails, or does not end, stops no other."""

import csv
import os
import stat
import subprocess
import unittest
from pathlib import Path

from program import BIN, ProgramTest, main

ROOT = Path(__file__).resolve().parents[2]
PHASES = ["build", "ops", "models", "cases", "peer", "sanitizer", "multi-gpu", "report"]

# What stands for the card and what is built for it.
STUBS = {
    "nvidia-smi": 'case "$*" in *compute_cap*) echo 9.0 ;; esac',
    "nvcc": "",
    "cmake": 'echo "cmake $*"',
    # A test fails, and those of models do not end.
    "ctest": """case "$*" in
      *-LE*) echo "66% tests passed, 1 tests failed out of 3"; exit 8 ;;
      *) echo "1/5 Test #7: bert_golden_cuda ....   Passed    0.11 sec"; sleep 120 ;;
    esac""",
    "compute-sanitizer": 'case "$*" in *memcheck*test_indices*) exit 99 ;; esac; echo "$*: ERROR SUMMARY: 0 errors"',
    "gnuplot": "",
    "build/bin/vramlab": """case $1 in
      doctor) echo "GPU          1 x NVIDIA H200, 139.80 GiB, driver 580.65, CUDA 13.0" ;;
      run | plan) mkdir -p "$4" && echo '{"status":"ok","case":"resnet50","micro_batch":256}' >>"$4/journal.jsonl" ;;
    esac""",
}


class GpuCheck(ProgramTest):
    def check(self, *arguments, code=0, **environment):
        """Runs the script; its table as a dictionary of rows by phase, and all it said."""
        done = subprocess.run([str(ROOT / "scripts/gpu-check"), *map(str, arguments)], cwd=self.folder, capture_output=True,
                              text=True, env={**os.environ, **environment}, timeout=120, check=False)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        rows = {}
        if (self.folder / "out/phases.tsv").exists():
            with open(self.folder / "out/phases.tsv", encoding="utf-8") as file:
                rows = {row["phase"]: row for row in csv.DictReader(file, delimiter="\t")}
        return rows, done

    def stubs(self):
        """Programs in the place of the toolkit's and of the build's; what the environment needs to have them found."""
        if (ROOT / ".deps/bin/cmake").exists():
            self.skipTest("the cmake in .deps goes before any other")
        for name, body in STUBS.items():
            path = self.folder / "stubs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{self.folder / 'stubs'}:{os.environ['PATH']}", "VRAMLAB_PEER_PYTHON": "false"}

    def test_dry_run_leaves_what_a_run_leaves(self):
        rows, done = self.check("--dry-run", "--build", BIN.parent, "-o", "out")
        self.assertEqual(list(rows), PHASES)
        states = {phase: row["state"] for phase, row in rows.items()}
        self.assertEqual(states, {**dict.fromkeys(PHASES, "ok"), "multi-gpu": "skipped"}, done.stderr)
        lines = self.journal("out/store")[1:]
        self.assertEqual({line["case"] for line in lines}, {"resnet50", "bert-base", "unet3d"})
        self.assertEqual({(line["device"], line["profile"]) for line in lines}, {("plan", "H200")})
        self.assertNotIn("measured", {line["provenance"] for line in lines})
        self.assertLessEqual({"baseline", "amp=bf16", "checkpoint=1", "offload=activations"}, {line["recipe"] for line in lines})
        # One batch a case, which fits with every recipe; what plan cannot do it says.
        self.assertEqual(len({(line["case"], line["global_batch"]) for line in lines}), 3)
        self.assertLessEqual({line["status"] for line in lines}, {"ok", "unsupported"})
        for name in ("store/results.h5", "store/report.html", "store/report.md", "gpu-check.log"):
            self.assertGreater((self.folder / "out" / name).stat().st_size, 0, name)
        log = (self.folder / "out/gpu-check.log").read_text(encoding="utf-8")
        for part in ["would run: cmake --preset cuda", "ops_cuda", "resnet50_golden_cuda", "vramlab run gpu-check -o",
                     "pytorch_step.py bert-base", "--tool memcheck", *(f"==== {phase}" for phase in PHASES)]:
            self.assertIn(part, log)
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["phase", *PHASES, "results"])

    def test_a_phase_that_fails_or_does_not_end_stops_no_other(self):
        rows, done = self.check("-o", "out", "--build", self.folder / "stubs/build", "--time", "20", code=1, **self.stubs())
        self.assertEqual({phase: row["state"] for phase, row in rows.items()},
                         {"build": "ok", "ops": "failed", "models": "timeout", "cases": "ok", "peer": "skipped",
                          "sanitizer": "failed", "multi-gpu": "skipped", "report": "ok"}, done.stderr)
        self.assertEqual(rows["build"]["note"], "for 90-real")
        self.assertIn("1 tests failed out of 3", rows["ops"]["note"])
        self.assertEqual(rows["models"]["note"], "1 passed, 0 failed so far")
        self.assertEqual(rows["cases"]["note"], "2 ok on NVIDIA H200, planned for H200")
        self.assertEqual(rows["multi-gpu"]["note"], "one card")
        self.assertEqual(rows["sanitizer"]["note"], "of 8 runs 1 with findings, 7 clean")
        self.assertLess(sum(int(row["seconds"]) for row in rows.values()), 26)
        log = (self.folder / "out/gpu-check.log").read_text(encoding="utf-8")
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=90-real", log)
        self.assertIn("resnet50 batch 256", log)

    def test_only_the_phases_asked_for(self):
        rows, _ = self.check("ops", "report", "-o", "out", "--build", self.folder / "stubs/build", code=1, **self.stubs())
        self.assertEqual({phase: row["state"] for phase, row in rows.items()}, {"ops": "failed", "report": "failed"})

    def no_card(self):
        if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"):
            self.skipTest("there is a card")

    def test_tests_that_find_no_card_fail(self):
        # The real tests, with what only says that there is a card and a toolkit.
        self.no_card()
        stubs = self.stubs()
        for name in ("cmake", "ctest", "gnuplot"):
            (self.folder / "stubs" / name).unlink()
        rows, done = self.check("ops", "-o", "out", "--build", BIN.parent, code=1, **stubs)
        self.assertEqual(rows["ops"]["state"], "failed")
        self.assertRegex(rows["ops"]["note"], r"^0% tests passed, (\d+) tests failed out of \1$", done.stderr)
        self.assertIn('status="fail"', (self.folder / "out/ops.xml").read_text(encoding="utf-8"))

    def test_without_a_card_it_is_skipped(self):
        self.no_card()
        _, done = self.check("-o", "out", code=77)
        self.assertIn("--dry-run", done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_bad_usage(self):
        for arguments in (["--nonsense"], ["nophase"], ["--time", "soon"], ["-o"], ["-n", "-p", "TPU-v9"]):
            self.check(*arguments, code=2)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    main()
