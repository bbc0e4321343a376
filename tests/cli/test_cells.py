"""Cells of a suite one by one and in parts: lists for programs, shards and their merged store, cells as tests of CTest
with numbers and figures that CTest itself reads."""

import json
import subprocess
import unittest
import xml.etree.ElementTree as xml

from program import BIN, ProgramTest, main, strict_json

SUITE = """name: parts
title: Parts
help: Five cells.
defaults: {device: plan, batch: 2, case: resnet50, settings: {size: 64}}
cells:
  - {recipe: [baseline, amp=bf16, checkpoint=1], timeline: true}
  - {batch: 4, timeout_s: 50}
  - {device: cuda}
"""


class Cells(ProgramTest):
    def setUp(self):
        super().setUp()
        self.name = self.suite(SUITE)
        self.cells = self.listed()

    def listed(self, *options):
        said = strict_json(self.run_program("run", self.name, "--dry-run", "--json", *options).stdout)
        self.assertEqual(said["suite"], "parts")
        return said["cells"]

    def keys(self, store):
        return {record["cell_key"]: record for record in self.journal(store)[1:]}

    def test_lists_say_what_lines_say(self):
        lines = self.run_program("run", self.name, "--dry-run").stdout.splitlines()
        self.assertEqual([cell["label"] for cell in self.cells], lines)
        self.assertEqual([cell["device"] for cell in self.cells], ["plan"] * 4 + ["cuda"])
        self.assertEqual(self.cells[3]["timeout_s"], 50)
        self.assertEqual(self.cells[0]["timeout_s"], 3600)

    def test_one_cell_by_its_key(self):
        key = self.cells[1]["cell_key"]
        self.run_program("run", self.name, "--cell", key[:10], "-q", "-o", "one")
        self.assertEqual(list(self.keys("one")), [key])
        self.refuses("run", self.name, "--cell", "xyz", says=["no cell", "xyz", "--dry-run --json"])
        self.refuses("run", self.name, "--cell", "", says="more than one cell")
        self.refuses("run", "--case", "resnet50", "--cell", key, says="go with a suite")

    def test_parts_are_the_whole_once(self):
        for count in (1, 2, 3, 5):
            parts = [[cell["cell_key"] for cell in self.listed("--shard", f"{i}/{count}")] for i in range(1, count + 1)]
            self.assertEqual(sorted(sum(parts, [])), sorted(cell["cell_key"] for cell in self.cells))
        for bad in ("0/3", "4/3", "1/0", "1", "a/b", "1/3x", "-1/3"):
            self.refuses("run", self.name, "--shard", bad, says=["--shard", "I/N"])
        self.refuses("run", self.name, "--shard", "6/6", "--dry-run", says="--shard leave no cell")

    def test_repetitions_stay_together(self):
        suite = self.suite(SUITE.replace("device: plan", "device: cpu"))
        for part in ("1/2", "2/2"):
            said = strict_json(self.run_program("run", suite, "--dry-run", "--json", "--repeat", "3", "--shard", part).stdout)
            labels = [cell["label"] for cell in said["cells"]]
            self.assertTrue(all(labels.count(label) == 3 for label in labels), labels)

    def test_merged_parts_are_the_whole(self):
        self.run_program("run", self.name, "-q", "-o", "whole")
        for i in (1, 2):
            self.run_program("run", self.name, "--shard", f"{i}/2", "-q", "-o", f"part{i}")
        for _ in range(2):  # the second time changes nothing
            self.run_program("import", "--store", "merged", "part1", "part2")
        merged, whole = self.keys("merged"), self.keys("whole")
        self.assertEqual(len(self.journal("merged")), 1 + len(whole))
        self.assertEqual({key: record["needed_bytes"] for key, record in merged.items()},
                         {key: record["needed_bytes"] for key, record in whole.items()})
        self.assertEqual(len(list((self.folder / "merged/cells").glob("*.h5"))), 3)  # timelines came along
        self.assertTrue((self.folder / "merged/results.h5").exists())
        self.run_program("run", self.name, "--resume", "-q", "-o", "merged")  # nothing is left to run
        self.assertEqual(len(self.journal("merged")), 1 + len(whole))
        other = self.suite(SUITE.replace("name: parts", "name: others"))
        self.run_program("run", other, "-q", "-o", "other")
        self.refuses("import", "--store", "merged", "other", says=["parts", "others"])
        self.refuses("import", "--store", "merged", "nowhere", says="nowhere")
        self.refuses("import", "--store", "merged", "--repeat", "1", "part1", says="--repeat is for one record")
        self.run_program("import", "--store", "merged", "merged")  # itself: nothing to add
        self.assertEqual(len(self.journal("merged")), 1 + len(whole))

    def test_what_is_ok_stays_in_a_merge(self):
        self.run_program("run", self.name, "--cell", self.cells[0]["cell_key"], "-q", "-o", "good")
        head, record = self.journal("good")
        (self.folder / "bad").mkdir()
        with open(self.folder / "bad/journal.jsonl", "w", encoding="utf-8") as journal:
            journal.write(json.dumps(head) + "\n" + json.dumps({**record, "status": "crashed"}) + "\n")
        self.run_program("import", "--store", "merged", "good", "bad")
        self.assertEqual([line["status"] for line in self.journal("merged")[1:]], ["ok"])
        self.run_program("import", "--store", "again", "bad", "good")
        self.assertEqual([line["status"] for line in self.journal("again")[1:]], ["crashed", "ok"])

    def test_a_cell_as_a_test(self):
        key, cuda = self.cells[0]["cell_key"], self.cells[4]["cell_key"]
        self.refuses("run", self.name, "--ctest", "-o", "many", says=["--ctest takes one cell, not 5"])
        (self.folder / "DartConfiguration.tcl").write_text("BuildDirectory: .\nSourceDirectory: .\n", encoding="utf-8")
        command = f'"{BIN.resolve()}/vramlab" run {self.name} -q --ctest'
        (self.folder / "CTestTestfile.cmake").write_text(
            f"add_test(measured {command} --cell {key} -o measured)\n"
            f"add_test(card {command} --cell {cuda} -o card)\nset_tests_properties(card PROPERTIES SKIP_RETURN_CODE 77)\n",
            encoding="utf-8")
        subprocess.run(["ctest", "-M", "Experimental", "-T", "Start", "-T", "Test", "--no-compress-output"], cwd=self.folder,
                       capture_output=True, check=False, timeout=60)
        (results,) = self.folder.glob("Testing/*/Test.xml")
        tests = {test.find("Name").text: test for test in xml.parse(results).getroot().iter("Test") if test.find("Name") is not None}
        numbers = {each.get("name"): each for each in tests["measured"].iter("NamedMeasurement")}
        record = self.keys("measured")[key]
        self.assertEqual(float(numbers["needed_bytes"].find("Value").text), record["needed_bytes"])
        self.assertNotIn("step_s", numbers)  # a plan knows no time
        if (self.folder / "measured/figures").exists():
            self.assertEqual(numbers["needed"].get("type"), "image/png")
        states = {finding["name"]: finding["state"] for finding in
                  strict_json(self.run_program("doctor", "--json").stdout)["findings"]}
        if states["device cuda"] == "ok":
            self.skipTest("there is a GPU")
        self.assertEqual(tests["card"].get("Status"), "notrun")
        said = self.run_program("run", self.name, "-q", "--ctest", "--cell", cuda, "-o", "card2", code=77).stdout
        self.assertIn("skipped: ", said)
        self.assertNotIn("numeric/double", said)
        said = self.run_program("run", self.name, "-q", "--ctest", "--cell", cuda, "-o", "card3", code=1,
                                VRAMLAB_REQUIRE="mpi,cuda").stdout
        self.assertIn("VRAMLAB_REQUIRE", said)

    def test_running_out_of_memory_is_a_result_and_not_a_failed_test(self):
        name = self.suite("name: ends\ndefaults: {case: resnet50, settings: {size: 64}, device: plan, batch: 2}\ncells:\n"
                          "  - {capacity: 150MiB}\n  - {device: cpu, recipe: allocator=async, steps: 1}\n")
        out, unsupported = strict_json(self.run_program("run", name, "--dry-run", "--json").stdout)["cells"]
        said = self.run_program("run", name, "-q", "--ctest", "--cell", out["cell_key"], "-o", "out").stdout
        self.assertEqual(self.journal("out")[1]["status"], "oom")
        self.assertIn('<CTestMeasurement type="text/string" name="status">oom</CTestMeasurement>\n', said)
        self.assertIn('name="oom_request_bytes">%d<' % self.journal("out")[1]["oom_request_bytes"], said)
        self.assertIn("\noom: no room for ", said)  # with its cause, for who reads the test's output
        # What cannot run here is skipped, visibly; a part that is required is there, so that is no failure.
        said = self.run_program("run", name, "-q", "--ctest", "--cell", unsupported["cell_key"], "-o", "cannot", code=77,
                                VRAMLAB_REQUIRE="cpu").stdout
        self.assertEqual(self.journal("cannot")[1]["status"], "unsupported")
        self.assertIn("unsupported: ", said)
        # A cell that was well and runs out of memory is what compare is for.
        head, record = self.journal("out")
        (self.folder / "well").mkdir()
        with open(self.folder / "well/journal.jsonl", "w", encoding="utf-8") as journal:
            journal.write(json.dumps(head) + "\n" + json.dumps({**record, "status": "ok"}) + "\n")
        self.assertIn("ok -> oom", self.run_program("compare", "well", "out", code=1).stdout)
        self.run_program("compare", "out", "well")

    def test_suites_are_registered(self):
        def shown(*options):
            done = subprocess.run(["ctest", "--test-dir", BIN.parent, "--show-only=json-v1", *options], capture_output=True,
                                  text=True, check=True, timeout=60)
            return {test["name"]: {each["name"]: each["value"] for each in test["properties"]}
                    for test in json.loads(done.stdout)["tests"]}

        if not (BIN.parent / "tests/cases/gpu-check_cells.cmake").exists():
            self.skipTest("only parts are built")
        tests = shown("-C", "bench")
        quick = [name for name in tests if name.startswith("quick/")]
        cards = [name for name in tests if name.startswith("gpu-check/")]
        self.assertEqual((len(quick), {case for name in cards for case in tests[name]["LABELS"]}),
                         (6, {"bench", "cuda", "gpu-check", "resnet50", "bert-base", "unet3d"}))
        for name in cards:
            self.assertEqual(tests[name]["RESOURCE_GROUPS"], [{"requirements": [{".type": "gpus", "slots": 1}]}])
            self.assertEqual((tests[name]["SKIP_RETURN_CODE"], tests[name]["TIMEOUT"]), (77, 300))
        self.assertFalse([name for name in shown() if "/" in name], "benchmarks run under their preset alone")


if __name__ == "__main__":
    main()
