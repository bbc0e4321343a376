"""vramlab compare and baseline: stores of the same program are the same, an allocation more is found and named, a fault
on purpose is no baseline; what changed in ops has its place in the model; JSON and JUnit's XML parse whatever names hold; wrong usage is refused."""

import json
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as xml

from program import ProgramTest, main, strict_json

SUITE = """name: small
title: Small
help: Two cells.
defaults: {device: plan, batch: 2, repeat: 1}
cells:
  - case: resnet50
    settings: {size: 64}
    recipe: [baseline, amp=bf16]
"""
ONE_MEASURED = """name: one
title: One
help: One measured cell.
defaults: {device: cpu, batch: 2, steps: 10, threads: 1}
cells:
  - {case: resnet50, settings: {size: 64}, recipe: [baseline]}
"""


TWO_MEASURED = """name: two
title: Two
help: Two measured cells.
defaults: {device: cpu, batch: 2, warmup: 1, steps: 5, threads: 1}
cells:
  - {case: resnet50, settings: {size: 32}, recipe: [baseline, stack=vramlab]}
"""


class Compare(ProgramTest):
    def store(self, name, *more):
        (self.folder / "small.yaml").write_text(SUITE, encoding="utf-8")
        self.run_program("run", "./small.yaml", "-q", "-o", name, *more)
        return name

    def test_the_same_is_the_same_and_more_memory_is_named(self):
        base, same, larger = self.store("base"), self.store("sa me"), self.store("larger", "--inject", "allocate=1MiB:workspace")
        done = self.run_program("compare", base, same)
        self.assertIn("No regression: 0 regressed, 0 improved, 0 changed, 0 unclear, 2 same", done.stdout)
        done = self.run_program("compare", base, larger, "--junit", "tests.xml", code=1)
        self.assertIn("peak_workspace_bytes", done.stdout)
        self.assertIn("+1.00 MiB", done.stdout)
        self.assertIn("injected", done.stdout)
        suite = xml.parse(self.folder / "tests.xml").getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "2"))
        self.assertIn("peak_workspace_bytes", suite.find("testcase/failure").text)
        said = strict_json(self.run_program("compare", base, larger, "--json", code=1).stdout)
        self.assertEqual(said["summary"]["regressed"], 2)
        differences = {d["metric"]: d for d in said["cells"][0]["differences"]}
        self.assertEqual(differences["peak_workspace_bytes"]["new"] - differences["peak_workspace_bytes"]["base"], 1 << 20)
        self.run_program("compare", larger, base)  # less is no regression

    def test_vanished_and_new_cells_are_named(self):
        base, less = self.store("base"), self.store("less", "--filter", "bf16")
        done = self.run_program("compare", base, less)
        self.assertIn("Vanished", done.stdout)
        self.assertIn("1 vanished", done.stdout)
        self.assertIn("1 new", self.run_program("compare", less, base).stdout)

    def test_side_by_side_is_judged_by_pairs(self):
        """Three times as slow is seen on any machine: in each cell, and in all of them together."""
        (self.folder / "two.yaml").write_text(TWO_MEASURED, encoding="utf-8")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "side-by-side")
        (program,) = self.command()
        slower = shlex.join([program, "--inject", "slowdown=2"])

        def measure(*more):
            return subprocess.run([sys.executable, script, program, slower, "./two.yaml", "--rounds", "6", *more], cwd=self.folder,
                                  capture_output=True, text=True, check=False)

        done = measure("--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        said = strict_json(done.stdout)
        self.assertEqual(said["summary"]["together"]["judgement"], "regressed")
        self.assertEqual(said["summary"]["together"]["evidence"], "6 rounds of 2 cells side by side")
        for cell in said["cells"]:
            time = next(d for d in cell["differences"] if d["metric"] == "step_s")
            self.assertEqual((time["evidence"], time["judgement"]), ("6 pairs side by side", "regressed"))
            self.assertTrue(1.5 < time["ratio"] < 6, time)
        self.run_program("compare", "side-by-side/base", "side-by-side/new", "--junit", "pairs.xml", code=1)
        suite = xml.parse(self.folder / "pairs.xml").getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("3", "3"))
        records = [json.loads(line) for line in (self.folder / "side-by-side/new/journal.jsonl").read_text().splitlines()][1:]
        self.assertEqual({record["order_seed"] for record in records if record["repeat"] > 0}, {0})
        again = measure()  # all is there
        self.assertRegex(again.stdout, r"All cells together\n    regressed  step_s  +\+[0-9.]+ % \[")  # no time of their own
        self.assertIsNone(said["summary"]["together"]["base"])
        self.assertIn("accepted: 6 and more", measure("-n", "5").stderr)
        self.assertEqual(measure("-n", "5").returncode, 2)

    def test_names_with_anything_in_them(self):
        base = self.store("base")
        journal = self.folder / base / "journal.jsonl"
        text = journal.read_text(encoding="utf-8").replace('"settings":"size=64"', '"settings":"<a> & \\"b\\", ü\\u0001"')
        error = '"status":"oom","error":"' + "ü" * 300 + '\\n<"'
        for name, body in (("one", text), ("two", text.replace('"status":"ok","error":null', error))):
            (self.folder / name).mkdir()
            (self.folder / name / "journal.jsonl").write_text(body, encoding="utf-8")
        self.run_program("compare", "one", "two", "--junit", "tests.xml", code=1)
        names = [case.get("name") for case in xml.parse(self.folder / "tests.xml").getroot().iter("testcase")]
        self.assertTrue(all('<a> & "b", ü' in name for name in names), names)
        said = json.loads(self.run_program("compare", "one", "two", "--json", code=1).stdout)
        self.assertEqual([d["new"] for c in said["cells"] for d in c["differences"] if d["metric"] == "status"], ["oom", "oom"])

    def kept(self, name, *more, **environment):
        """A measured cell with the ops of a step."""
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--threads", "1",
                         "--steps", "3", "--timeline", "-o", name, *more, **environment)
        return name

    def test_ops_that_run_another_implementation_are_named(self):
        base, other = self.kept("base"), self.kept("other", ONEDNN_MAX_CPU_ISA="SSE41")
        isa = [self.journal(name)[1]["isa"] for name in (base, other)]
        if isa[0] == isa[1]:
            self.skipTest("this processor has no other instruction set for oneDNN")
        done = subprocess.run(self.command("compare", base, other, "--json", "--junit", "tests.xml"), cwd=self.folder,
                              capture_output=True, text=True, check=False)
        said = strict_json(done.stdout)
        ops = said["cells"][0]["ops"]
        self.assertEqual((ops["base_steps"], ops["new_steps"]), (1, 1))
        changes = ops["implementations"]
        self.assertTrue(any(change["op"] == "conv" and change["segment"] == "forward" for change in changes), changes)
        self.assertTrue(all(change["base"] != change["new"] for change in changes))
        longest = [max(change["base_s"], change["new_s"]) for change in changes]
        self.assertEqual(longest, sorted(longest, reverse=True))
        self.assertTrue(ops["scopes"])
        junit = xml.parse(self.folder / "tests.xml").getroot()
        properties = {item.get("name"): item.get("value") for item in junit.iter("property")}
        self.assertEqual(properties["environment.isa"], f"{isa[0]} -> {isa[1]}")
        self.assertIn("launches differ", junit.find("system-out").text)
        self.assertEqual(said["environment"]["isa"], {"base": isa[0], "new": isa[1]})
        text = self.run_program("compare", base, other, "--all", code=done.returncode).stdout
        self.assertRegex(text, r"Implementations of ops: \d+ of \d+ launches differ, in 1 of 1 cells that kept them\n  \w+ ")
        self.assertRegex(text, r"\n      and \d+ more\n")
        self.assertIn("ops by scope, each waited for, of 1 and 1 steps (noisy)", text)
        self.assertLess(text.index("Implementations of ops"), text.index("step_s"))
        # A results.h5 on its own keeps them too.
        alone = strict_json(subprocess.run(self.command("compare", f"{base}/results.h5", f"{other}/results.h5", "--json"),
                                           cwd=self.folder, capture_output=True, text=True, check=False).stdout)
        self.assertEqual(alone["cells"][0]["ops"], ops)

    def test_ops_are_no_verdict_and_memory_has_a_place(self):
        base, larger = self.kept("base"), self.kept("larger", "--inject", "allocate=1MiB:activation")
        done = self.run_program("compare", base, larger, "--min-change", "100", "--junit", "tests.xml", code=1)
        self.assertIn("Implementations of ops: the same in 1 cell that kept them", done.stdout)
        self.assertRegex(done.stdout, r"held at the allocated peak\n +injected +0 -> 1048576  \+1.00 MiB")
        self.assertNotIn("ops by scope", done.stdout)  # its time did not change
        self.assertIn("injected", xml.parse(self.folder / "tests.xml").getroot().find("testcase/failure").text)
        said = strict_json(self.run_program("compare", base, larger, "--json", code=1).stdout)
        self.assertEqual(said["cells"][0]["held"], [{"scope": "injected", "base_bytes": 0, "new_bytes": 1 << 20}])
        self.assertNotIn("ops", [difference["metric"] for difference in said["cells"][0]["differences"]])

    def test_baseline(self):
        base, larger = self.store("base"), self.store("larger", "--inject", "allocate=1MiB:workspace")
        self.assertIn("--reason", self.run_program("baseline", "update", base, code=2).stderr)
        self.assertIn("baseline update", self.run_program("compare", "--baseline", base, "--baselines", "kept", code=3).stderr)
        self.run_program("baseline", "update", base, "--baselines", "kept", "--reason", "it has begun")
        self.assertIn("it has begun", self.run_program("baseline", "show", base, "--baselines", "kept").stdout)
        done = self.run_program("compare", "--baseline", larger, "--baselines", "kept", code=1)
        self.assertIn("it has begun", done.stdout)
        self.assertIn("+1.00 MiB", done.stdout)
        self.run_program("compare", "--baseline", base, "--baselines", "kept")
        self.assertIn("injected", self.run_program("baseline", "update", larger, "--baselines", "kept", "-r", "no", code=2).stderr)
        files = list((self.folder / "kept").iterdir())
        self.assertEqual(len(files), 1)
        files[0].write_text("{}\n", encoding="utf-8")
        self.assertIn(".jsonl:1:", self.run_program("compare", "-b", base, "--baselines", "kept", code=2).stderr)

    def test_usage(self):
        base = self.store("base")
        for arguments in ([], [base], [base, base, base], ["--baseline", base, base], ["--min-change", "x", base, base],
                          [base, "nowhere"]):
            done = self.run_program("compare", *arguments, code=2)
            self.assertTrue(done.stderr.strip(), arguments)
        self.run_program("baseline", "forget", base, code=2)
        self.run_program("run", "--case", "resnet50", "--inject", "slowdown=-1", code=2)

    def test_measures_until_the_noise_is_low(self):
        small = ["run", "--case", "resnet50", "--set", "size=32", "--batch", "1", "--infer", "--device", "cpu", "--json", "--steps", "6", "--threads", "1"]
        quiet = strict_json(self.run_program(*small, "--max-noise", "99").stdout)
        self.assertEqual(quiet["stopped_by"], "noise")
        self.assertLess(quiet["step_s_high"] - quiet["step_s"], quiet["step_s"])
        never = strict_json(self.run_program(*small, "--max-noise", "0.0001", "--max-time", "3").stdout)
        self.assertEqual(never["stopped_by"], "time")
        self.assertGreater(never["step_count"], 6)
        self.assertEqual(len(never["step_times_s"]), never["step_count"])
        self.assertIsNone(strict_json(self.run_program(*small).stdout)["stopped_by"])
        self.refuses(*small, "--max-noise", "-1", says="--max-noise")
        self.refuses(*small, "--max-time", "3", says="--max-noise")
        self.refuses("run", "--case", "resnet50", "--monitor", "--max-noise", "5", says="monitor")

    def test_what_was_disturbed_is_measured_again(self):
        (self.folder / "one.yaml").write_text(ONE_MEASURED, encoding="utf-8")
        # So many threads that a step of one thread has less than half of every processor.
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
        try:
            done = self.run_program("run", "./one.yaml", "--retries", "2", "-o", "out")
        finally:
            for process in busy:
                process.kill()
                process.wait()
        records = [line for line in self.journal("out") if line.get("case")]
        if records[0]["involuntary_switches"] is None:
            self.skipTest("the system does not tell who uses the processors")
        self.assertEqual(len(records), 3)
        self.assertEqual(len({record["cell_key"] for record in records}), 1)
        for record in records:
            self.assertIn("other processes used", record["disturbed"])
            self.assertGreater(record["other_cpu_share"], 0.1)
        self.assertEqual(done.stderr.count("; disturbed: other processes used"), 3, done.stderr)
        self.assertRegex(done.stderr, r"step [0-9.]+ m?s \(-?\+?[0-9.]+ % \+[0-9.]+ %\), median of 10")

    def test_a_short_measurement_accuses_nobody(self):
        record = strict_json(self.run_program(
            "run", "--case", "resnet50", "--set", "size=32", "--batch", "1", "--infer", "--device", "cpu", "--json", "--steps",
            "1", "--threads", "1").stdout)
        if record["step_times_s"][0] > 0.4:
            self.skipTest("this machine is too slow to measure shortly")
        self.assertIsNone(record["other_cpu_share"])
        self.assertIsNone(record["steal_share"])
        self.assertIn("half a second", record["null_reasons"]["other_cpu_share"])

    def test_rounds(self):
        (self.folder / "small.yaml").write_text(SUITE.replace("device: plan", "device: cpu"), encoding="utf-8")
        lines = self.run_program("run", "./small.yaml", "--repeat", "3", "--dry-run").stdout.splitlines()
        self.assertEqual(len(lines), 6)
        for first in (0, 2, 4):  # each cell once a round
            self.assertEqual(len(set(lines[first:first + 2])), 2, lines)
        self.assertEqual(lines, self.run_program("run", "./small.yaml", "--repeat", "3", "--dry-run").stdout.splitlines())
        orders = {tuple(self.run_program("run", "./small.yaml", "--repeat", "3", "--order-seed", str(seed), "--dry-run")
                        .stdout.splitlines()) for seed in range(8)}
        self.assertGreater(len(orders), 1)


if __name__ == "__main__":
    main()
