"""Suites into stores, with cells that do as they are told."""

import hashlib
import unittest

from program import ProgramTest, main, strict_json

SIX = "name: six\ndefaults: {case: resnet50, steps: 2%s}\naxes: {batch: [1, 2, 3, 4, 5, 6]}\n"


class Suites(ProgramTest):
    program = "vramlab_obedient"

    def statuses(self, store):
        """The latest of each key, as readers see them."""
        latest = {}
        for line in self.journal(store)[1:]:
            latest[line["cell_key"]] = line["status"]
        return list(latest.values())

    def test_store_has_its_place_and_latest_points_to_it(self):
        self.run_program("run", self.suite(SIX % ""), "-q")
        latest = self.folder / "vramlab-results/latest"
        self.assertTrue(latest.is_symlink())
        self.assertEqual((self.folder / "vramlab-results/six/latest").resolve(), latest.resolve())
        self.assertEqual(self.statuses("vramlab-results/latest"), ["ok"] * 6)
        self.assertTrue((latest / "results.h5").exists())
        head, first = self.journal("vramlab-results/latest")[:2]
        self.assertEqual((head["suite"], first["suite"]), ("six", "six"))
        content = (self.folder / "suite.yaml").read_bytes()
        self.assertEqual(first["suite_sha256"], hashlib.sha256(content).hexdigest())
        self.assertRegex(head["command_line"], "^vramlab run ./suite.yaml -q$")

    def test_resumed_suites_have_one_row_a_cell_i10(self):
        suite = self.suite(SIX % "")
        self.run_program("run", suite, "-o", "store", "--filter", "batch [123] ")
        self.assertEqual(len(self.statuses("store")), 3)
        for expected in (3, 0):
            summary = strict_json(self.run_program("run", suite, "-o", "store", "--json").stdout)
            self.assertEqual((summary["cells"], summary["ran"]), (6, expected))
            self.assertEqual(len(self.journal("store")), 7)

    def test_failed_cells_run_again_when_asked_i10(self):
        # Every cell crashes the first time: the first makes the file, so one fails and five end well.
        suite = self.suite(SIX % f", data: 'once:{self.folder}/made'")
        self.run_program("run", suite, "-o", "store", code=1)
        self.assertEqual(sorted(self.statuses("store")), ["crashed"] + ["ok"] * 5)
        self.run_program("run", suite, "-o", "store", code=1)
        done = self.run_program("run", suite, "-o", "store", "--failed")
        self.assertIn("[1/1]", done.stderr)
        self.assertNotIn("[2/", done.stderr)
        self.assertEqual(self.statuses("store"), ["ok"] * 6)
        self.assertEqual(len(self.journal("store")), 8)

    def test_each_ending_is_stored_and_the_suite_goes_on(self):
        orders = ["", "oom", "crash", "exit", "diverged", "hang", "environment"]
        listed = ", ".join(f"'log:{self.folder}/log {order}'" for order in orders)
        suite = self.suite(f"name: t\ncells:\n  - {{case: resnet50, timeout_s: 1, data: [{listed}]}}\n")
        self.run_program("run", suite, "-o", "store", code=1)
        self.assertEqual(self.statuses("store"), ["ok", "oom", "crashed", "crashed", "diverged", "timeout", "skipped"])
        self.assertIn("signal 11", self.journal("store")[3]["error"])

    def test_out_of_memory_is_a_result_not_a_failure(self):
        self.run_program("run", self.suite("name: t\ncells: [{case: resnet50, data: oom}]\n"), "-o", "store")

    def test_cells_larger_than_the_machine_are_skipped_in_bytes(self):
        # The plan needs 1 MiB a sample: 2^24 of them are 16 TiB.
        suite = self.suite("name: t\ncells: [{case: resnet50, batch: 16777216}]\n")
        self.run_program("run", suite, "-o", "store", code=77)
        record = self.journal("store")[1]
        self.assertEqual(record["status"], "skipped")
        self.assertRegex(record["skip_reason"], r"needs 17592186044416 bytes .* has \d+ bytes .* available")

    def test_plan_of_a_suite_measures_nothing(self):
        self.run_program("plan", self.suite(SIX % ", data: crash"), "-o", "store")
        self.assertEqual({line["provenance"] for line in self.journal("store")[1:]}, {"predicted"})

    def test_searches_are_stored(self):
        suite = self.suite("name: t\nmax_batch: [{case: resnet50, capacity: [5MiB, 9MiB]}]\n")
        self.run_program("run", suite, "-o", "store")
        self.assertEqual([(line["kind"], line["batch"]) for line in self.journal("store")[1:]],
                         [("max-batch", 5), ("max-batch", 9)])

    def test_options_over_a_suite(self):
        suite = self.suite(SIX % "")
        self.run_program("run", suite, "-o", "store", "--steps", "4", "-x", "batch [2-6]")
        self.assertEqual([line["step_count"] for line in self.journal("store")[1:]], [4])
        self.refuses("run", suite, "--batch", "3", says=["--batch", "--filter"])
        self.refuses("run", suite, "-f", "(", says="regular expression")
        self.refuses("run", suite, "-f", "nothing like that", says="no cell")
        dry = self.run_program("run", suite, "-n")
        self.assertEqual(len(dry.stdout.splitlines()), 6)
        self.assertIn("resnet50 batch 1 cpu baseline", dry.stdout)

    def test_another_suites_store_is_refused(self):
        self.run_program("run", self.suite(SIX % ""), "-o", "store")
        self.refuses("run", self.suite((SIX % "").replace("six", "seven")), "-o", "store", says=["six", "seven"])
        (self.folder / "mine").mkdir()
        (self.folder / "mine/letter.txt").write_text("dear", encoding="utf-8")
        self.refuses("run", self.suite(SIX % ""), "-o", "mine", says="not empty")

    def test_malformed_suites_name_the_place(self):
        self.refuses("run", self.suite("name: t\ncells: [{case: resnet50, bach: 1}]\n"), says="suite.yaml:2:26: ")
        self.refuses("run", self.suite("name: [\n"), says="suite.yaml:2:1: ")
        self.refuses("run", "./nothere.yaml", says="nothere.yaml")

    def test_progress_never_passes_100_percent_i10(self):
        done = self.run_program("run", self.suite(SIX % ""), "-o", "store")
        lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
        self.assertEqual([line.split("]")[0] for line in lines], [f"[{i}/6" for i in range(1, 7)])
        self.assertNotIn("\033", done.stderr)


if __name__ == "__main__":
    main()
