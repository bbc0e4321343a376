"""vramlab compare and baseline: stores of the same program are the same, an allocation more is found and named, a fault
on purpose is no baseline; JSON and JUnit's XML parse whatever names hold; wrong usage is refused."""

import json
import subprocess
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

    def test_names_with_anything_in_them(self):
        base = self.store("base")
        journal = self.folder / base / "journal.jsonl"
        text = journal.read_text(encoding="utf-8").replace('"settings":"size=64"', '"settings":"<a> & \\"b\\", ü\\u0001"')
        for name, body in (("one", text), ("two", text.replace('"status":"ok"', '"status":"oom"'))):
            (self.folder / name).mkdir()
            (self.folder / name / "journal.jsonl").write_text(body, encoding="utf-8")
        self.run_program("compare", "one", "two", "--junit", "tests.xml", code=1)
        names = [case.get("name") for case in xml.parse(self.folder / "tests.xml").getroot()]
        self.assertTrue(all('<a> & "b", ü' in name for name in names), names)
        said = json.loads(self.run_program("compare", "one", "two", "--json", code=1).stdout)
        self.assertEqual([d["new"] for c in said["cells"] for d in c["differences"] if d["metric"] == "status"], ["oom", "oom"])

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
        self.refuses("run", "--case", "resnet50", "--monitor", "--max-noise", "5", says="monitor")

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
