"""A store of the first schema, written before many of today's columns (tests/goldens/store-1), is read by every command, as
a directory and as a results.h5 alone, and can be gone on with."""

import gzip
import re
import shutil
from pathlib import Path

from program import ProgramTest, main, strict_json

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests/goldens/store-1"
TIMELINE_KEYS = sorted(path.stem for path in (OLD / "cells").iterdir())


class OldStores(ProgramTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(OLD, self.folder / "store")
        (self.folder / "store/results.h5.gz").unlink()
        (self.folder / "alone.h5").write_bytes(gzip.decompress((OLD / "results.h5.gz").read_bytes()))
        self.before = (OLD / "journal.jsonl").read_bytes()

    def columns(self):
        """Paths of all columns, from results/SCHEMA.md."""
        schema = (ROOT / "results/SCHEMA.md").read_text(encoding="utf-8").split("## results.h5")[0]
        rows = re.findall(r"^\| `([a-z_0-9.]+)` \| `[a-z_0-9]+` \|", schema, re.MULTILINE)
        self.assertGreater(len(rows), 100)
        return rows

    def test_every_command_reads_it(self):
        for store in ("store", "store/results.h5", "alone.h5"):
            self.assertIn("bert-base", self.run_program("report", store).stdout)
            for form in ("md", "html"):
                text = self.run_program("report", store, "-f", form, "-o", "-").stdout
                self.assertIn("7 records", text)
                self.assertIn("oom", text)
            claims = strict_json(self.run_program("claims", store, "--json").stdout)
            self.assertEqual({claim["verdict"] for claim in claims}, {"undecided", "untestable"})
            self.run_program("plot", store, "-o", "figures")
            exported = self.run_program("export", store, "--format", "jsonl").stdout.splitlines()
            self.assertEqual(len([strict_json(line) for line in exported if '"cell_key"' in line]), 7)
            self.run_program("export", store, "--format", "csv")
            self.run_program("export", store, "--format", "trace", "-o", "trace.json")
            self.assertIn("caching", self.run_program("replay", store, "--cell", TIMELINE_KEYS[0], "--quick").stdout)
            self.assertIn("7 same", self.run_program("compare", store, "alone.h5").stdout)
        self.assertEqual((self.folder / "store/journal.jsonl").read_bytes(), self.before)

    def test_columns_it_lacks_are_there(self):
        old = strict_json(self.before.split(b"\n")[1])
        lacking = [path for path in self.columns() if path.split(".")[0] not in old]
        self.assertIn("input_s", lacking, "the store is not older than that column")
        self.assertNotIn(b"input_s", (self.folder / "alone.h5").read_bytes())
        (self.folder / "store/results.h5").unlink(missing_ok=True)
        self.run_program("report", "store")  # makes results.h5 with today's columns
        results = (self.folder / "store/results.h5").read_bytes()
        for path in lacking:
            self.assertIn(path.split(".")[-1].encode(), results)
        for line in self.run_program("export", "store", "--format", "jsonl").stdout.splitlines():
            record = strict_json(line)
            for path in lacking:
                self.assertIsNone(record[path], path)
                self.assertEqual(record["null_reasons"][path], "not kept by the vramlab that wrote this")

    def test_it_can_be_gone_on_with(self):
        suite = (OLD / "early.yaml").read_text(encoding="utf-8").replace("batch: [1, 4]", "batch: [1, 2, 4]")
        (self.folder / "early.yaml").write_text(suite, encoding="utf-8")
        self.run_program("run", "./early.yaml", "-o", "store", "-f", " plan ")
        lines = self.journal("store")
        self.assertEqual((self.folder / "store/journal.jsonl").read_bytes()[:len(self.before)], self.before)
        self.assertIn((2, "baseline"), [(line["micro_batch"], line["recipe"]) for line in lines[1:]])
        self.assertIn("bert-base", self.run_program("report", "store").stdout)


if __name__ == "__main__":
    main()
