"""scripts/nightly: nights of real tests and cells. The first has nothing to compare with, the second is well, one with an
allocation more regressed, one whose tests are skipped tests less; started twice it tells what it found."""

import json
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from program import BIN, ProgramTest, main

ROOT = Path(__file__).resolve().parents[2]
SUITE = """name: small
title: Small
help: Two cells.
defaults: {device: plan, batch: 2}
cells:
  - case: resnet50
    settings: {size: 64}
    recipe: [baseline, amp=bf16]
"""


class Nightly(ProgramTest):
    def night(self, name, *more, code=0, tests="^base_(units|dtype)$", **environment):
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts/nightly"), "--no-update", "--no-build", "--build", str(BIN.parent), "--tests",
             tests, "-d", "nights", "--baselines", "kept", "--night", name, "--suites", "./small.yaml", *more], cwd=self.folder,
            capture_output=True, text=True, timeout=200, check=False, env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), **environment})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertLessEqual(len(lines), 15)
        return done.stdout

    def setUp(self):
        super().setUp()
        (self.folder / "small.yaml").write_text(SUITE, encoding="utf-8")

    def test_nights(self):
        first = self.night("2026-01-01")
        self.assertIn("all is well", first)
        self.assertIn("nothing to compare with yet", first)
        self.assertIn("tests: 2 passed, 0 failed, 0 skipped", first)
        store = self.folder / "nights/2026-01-01"
        self.assertTrue((store / "small/report.html").exists() and (store / "tests.xml").exists())
        self.assertTrue((store / "drop/Test.xml").exists())

        self.run_program("baseline", "update", store / "small", "--baselines", "kept", "--reason", "the first night")
        second = self.night("2026-01-02")
        self.assertIn("0 regressed, 0 improved, 0 unclear against 2026-01-01; 0 regressed", second)
        self.assertIn("against the baseline", second)
        self.assertEqual(self.night("2026-01-02"), second)  # and again

        third = self.night("2026-01-03", "--", "--inject", "allocate=1MiB:workspace", code=1)
        self.assertIn("REGRESSED", third)
        self.assertIn("+1,048,576 bytes", third)
        self.assertTrue(list((self.folder / "nights/2026-01-03").glob("compare-small-*.xml")))
        fourth = self.night("2026-01-04", code=0)  # less than last night, and as the baseline is
        self.assertIn("improved: ", fourth)

    def test_what_is_no_longer_tested_is_told(self):
        self.night("2026-01-01")
        facts = self.folder / "nights/2026-01-01/facts.json"
        known = json.loads(facts.read_text(encoding="utf-8"))
        known["tests"]["devices_cuda"] = "passed"
        facts.write_text(json.dumps(known), encoding="utf-8")
        junit = self.folder / "nights/2026-01-01/tests.xml"
        self.assertTrue(junit.exists())
        # A test that skips for lack of hardware: here that of the cuda device, unless the night before required it.
        known["devices"] = ["cpu"]
        facts.write_text(json.dumps(known), encoding="utf-8")
        name = next((t for t in self.listed() if t.endswith("_cuda")), None)
        if name is None:
            self.skipTest("no test of the cuda device is built")
        known["tests"][name] = "passed"
        facts.write_text(json.dumps(known), encoding="utf-8")
        less = self.night("2026-01-02", tests=f"^{name}$", code=1)
        self.assertIn("LESS IS TESTED", less)
        self.assertIn(f"newly skipped: {name}", less)
        known["devices"] = ["cpu", "cuda"]  # a card was here last night
        (self.folder / "nights/2026-01-02/facts.json").write_text(json.dumps(known), encoding="utf-8")
        gone = self.night("2026-01-03", tests=f"^{name}$", code=1)
        self.assertIn(f"newly failing: {name}", gone)
        self.assertIn("missing: cuda", gone)
        # Not for one night only, until somebody says that it need not be there.
        still = self.night("2026-01-04", tests=f"^{name}$", code=1)
        self.assertIn("missing: cuda", still)
        self.assertIn(f"still failing: {name}", still)
        self.assertIn("all is well", self.night("2026-01-05", tests=f"^{name}$", VRAMLAB_REQUIRE="cpu"))
        self.assertIn("all is well", self.night("2026-01-06", tests=f"^{name}$"))

    def listed(self):
        done = subprocess.run(["ctest", "--test-dir", str(BIN.parent), "-N"], capture_output=True, text=True, check=True)
        return [line.split()[-1] for line in done.stdout.splitlines() if line.strip().startswith("Test ")]

    def test_a_night_that_was_stopped_goes_on(self):
        log = self.folder / "cells"
        (self.folder / "build/bin").mkdir(parents=True)
        (self.folder / "build/bin/vramlab").symlink_to(BIN.resolve() / "vramlab_obedient")
        slow = f"name: slow\ndefaults: {{case: resnet50, steps: 3, data: 'log:{log} slow:200'}}\naxes: {{batch: [1, 2, 3]}}\n"
        (self.folder / "slow.yaml").write_text(slow, encoding="utf-8")
        command = [sys.executable, str(ROOT / "scripts/nightly"), "--no-update", "--no-build", "--no-tests", "--build", "build",
                   "-d", "nights", "--night", "2026-01-01", "--repeat", "1", "--suites", "./slow.yaml"]
        first = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while not log.exists() or len(log.read_text(encoding="utf-8").splitlines()) < 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        beside = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((beside.returncode, "another run, or what one that was killed had started, holds" in beside.stderr), (3, True), beside.stderr)
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=60)
        self.assertEqual((first.returncode, "start it again" in said), (4, True), said)
        second = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        self.assertIn("slow: 3 of 3 cells ok", second.stdout)
        self.assertLessEqual(len(log.read_text(encoding="utf-8").splitlines()), 4)  # what was finished is not run again

    def test_the_worst_stands_first_in_few_lines(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        from nightly_summary import summarize  # beside the script; pylint: disable=import-outside-toplevel
        against = {"what": "2026-01-01", "regressed": ["a cell: step_s +9.0 %"], "improved": [],
                   "summary": {"regressed": 1, "improved": 0, "unclear": 0}}
        suites = {f"suite{i}": {"store": "s", "cells": {"k": "oom"}, "against": [against]} for i in range(20)}
        facts = {"night": "2026-01-02", "host": "box", "problems": [], "warnings": ["w"], "suites": suites,
                 "tests": {"t" * 200 + str(i): "failed" for i in range(9)}}
        lines, bad = summarize(facts, None, Path("nights"), "abc")
        self.assertTrue(bad)
        self.assertEqual((len(lines), lines[0]), (15, "vramlab nightly 2026-01-02: FAILED (box, abc)"))
        self.assertTrue(lines[1].startswith("newly failing: ttt") and lines[1].endswith("... (+5)") and len(lines[1]) < 310)
        self.assertEqual(lines[2], "regressed: a cell: step_s +9.0 %")
        self.assertEqual(lines[-2:], ["and 12 lines more in facts.json", "all of it: nights"])

    def slowed(self, program, by):
        """Puts a program in that place which is vramlab, but takes longer for its steps."""
        program.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(f'#!/bin/sh\n[ "$1" = run ] && set -- "$@" --inject slowdown={by}\nexec {BIN.resolve()}/vramlab "$@"\n',
                           encoding="utf-8")
        program.chmod(0o755)

    def test_longer_times_are_measured_beside_the_last_good_build(self):
        (self.folder / "small.yaml").write_text(SUITE.replace("device: plan, batch: 2", "device: cpu, batch: 2, steps: 3, threads: 1")
                                                .replace("size: 64", "size: 32"), encoding="utf-8")
        options = ["--no-tests", "--repeat", "4", "--confirm", "6"]
        self.night("2026-01-01", *options)
        self.slowed(self.folder / "slow/bin/vramlab", 3)
        said = self.night("2026-01-02", *options, "--build", "slow", code=1)
        self.assertIn("REGRESSED", said)
        self.assertRegex(said, r"regressed: .*step_s \+[0-9.]+ % beside the build of 2026-01-01")
        self.assertIn("2 regressed of 2 measured beside the build of 2026-01-01", said)
        history = self.run_program("report", "--history", "nights")
        self.assertNotIn("side-by-side", history.stdout)

        # Slower than on the night before, as that was on another machine; but not than the build of that night.
        (self.folder / "nights/2026-01-02/facts.json").unlink()
        journal = self.folder / "nights/2026-01-01/small/journal.jsonl"
        head, *records = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        for record in records:
            record["step_s"] *= 0.1
            record["step_times_s"] = [0.1 * step for step in record["step_times_s"]]
        journal.write_text("".join(json.dumps(line) + "\n" for line in [head, *records]), encoding="utf-8")
        self.slowed(self.folder / "nights/last-good/bin/vramlab", 3)
        said = self.night("2026-01-03", *options)
        self.assertIn("all is well", said)
        self.assertIn("2 regressed, 0 improved, 0 unclear against 2026-01-01; 0 regressed of 2 measured beside", said)

    def test_usage(self):
        self.night("2026-01-01", "--repeat", "0", code=2)
        self.night("2026-01-01", "--keep", "1", code=2)
        self.night("2026-01-01", "--confirm", "5", code=2)
        broken = self.night("2026-01-01", "--suites", "./none.yaml", code=1)
        self.assertIn("BROKEN", broken)
        self.assertRegex(broken, r"problem: vramlab run ended with code 2: vramlab: .*none\.yaml")
        self.assertIn("all is well", self.night("2026-01-01"))  # tried again
        for night in ("2026-01-02", "2026-01-03"):
            self.night(night, "--keep", "2", "--no-tests")
        self.assertEqual(sorted(path.name for path in (self.folder / "nights").iterdir()),
                         ["2026-01-02", "2026-01-03", "last-good", "lock"])
        # The build that was kept computes by itself.
        kept = subprocess.run([self.folder / "nights/last-good/bin/vramlab", "run", "--case", "resnet50", "--set", "size=32",
                               "--batch", "2", "--steps", "1", "--device", "cpu", "--json"], cwd=self.folder, env={},
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((kept.returncode, json.loads(kept.stdout)["status"]), (0, "ok"), kept.stderr)


if __name__ == "__main__":
    main()
