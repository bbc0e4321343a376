"""scripts/to-wandb: the runs it writes, read back with the reader of W&B's own client, hold what the store holds.
Runs with the Python of scripts/peers/setup; skipped where that has no wandb."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from program import BIN, ProgramTest, main, strict_json

try:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
except ImportError as missing:
    print(f"skipped: {missing}; scripts/peers/setup installs it")
    sys.exit(77)

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/to-wandb"
NAME = 'a,b "c" <d> & \'e\' ü\n{f}' + "x" * 200


class Run:
    """What one run's file holds: the run's own record, config, summary and rows of history."""

    def __init__(self, folder):
        (path,) = folder.glob("*.wandb")
        self.config, self.summary, self.rows, self.axes, self.exit_code = {}, {}, [], {}, None
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.config = {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key != "_wandb"}
            elif kind == "summary":
                self.summary.update({item.key: json.loads(item.value_json) for item in record.summary.update if item.key})
            elif kind == "history":
                self.rows.append({item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
            elif kind == "metric":
                self.axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
            elif kind == "exit":
                self.exit_code = record.exit.exit_code
        store.close()

    def series(self, name):
        return [(row["_step"], row[name]) for row in self.rows if name in row]


class WandbRuns(ProgramTest):
    def convert(self, *arguments, code=0, **environment):
        done = subprocess.run(
            [sys.executable, SCRIPT, "--vramlab", BIN / "vramlab", *arguments], cwd=self.folder, capture_output=True, text=True,
            env={**os.environ, "WANDB_MODE": "disabled", "WANDB_RUN_ID": "another", **environment}, timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def runs(self, folder="wandb"):
        """By the key of their cells."""
        found = [Run(path) for path in sorted((self.folder / folder).iterdir())]
        return {run.config["cell_key"]: run for run in found}

    def store(self):
        """Cells that ran, one that ran out of memory, one on paper, and one with everything in its name and losses that are
        not finite."""
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--steps", "3",
                         "--timeline", "-q", "-o", "store")
        self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--timeline", "-q", "-o", "store")
        self.run_program("plan", "--case", "bert-base", "--batch", "2", "--capacity", "1MiB", "-q", "-o", "store", code=1)
        journal = self.folder / "store/journal.jsonl"
        lines = journal.read_text(encoding="utf-8").splitlines()
        odd = strict_json(lines[1])
        odd.update(cell_key="f" * 16, settings=NAME, suite=NAME, error=NAME, status="diverged", losses=[1.5, None, 2.5, None],
                   last_loss=None)
        journal.write_text("\n".join([*lines, json.dumps(odd)]) + "\n", encoding="utf-8")
        lines = self.run_program("export", "store", "-f", "jsonl").stdout.splitlines()
        return {record["cell_key"]: record for record in map(strict_json, lines)}

    def check(self, run, record):
        self.assertEqual(set(run.config) & set(run.summary), set())
        told = {**run.summary, **run.config}
        for name, value in record.items():
            if isinstance(value, dict):
                value = {part: number for part, number in value.items() if number is not None} or None
            if value is None or isinstance(value, list) or name == "null_reasons":
                self.assertNotIn(name, told)
            else:
                self.assertEqual(told[name], value, name)
        for name, series, first in (
                ("losses", "step/loss", 0), ("step_times_s", "step/time_s", record["warmup"] or 0),
                ("step_peaks_bytes", "step/peak_allocated_bytes", 0), ("step_reserved_bytes", "step/peak_reserved_bytes", 0),
                ("live_bytes", "step/live_bytes", 0), ("step_fragmentation", "step/fragmentation", 0)):
            expected = [(step, value) for step, value in enumerate(record[name], first) if value is not None]
            self.assertEqual(run.series(series), expected, series)
        self.assertFalse(any(isinstance(v, float) and not math.isfinite(v) for row in run.rows for v in row.values()))
        self.assertEqual(run.exit_code, 0 if record["status"] == "ok" else 1)
        self.assertEqual(set(run.run.tags), {record["status"], record["provenance"]} - {None})
        self.assertEqual((run.run.project, run.run.host, run.run.job_type), ("vramlab", record["hostname"], "cell"))

    def test_runs_hold_what_the_store_holds(self):
        records = self.store()
        self.assertEqual({r["status"] for r in records.values()}, {"ok", "oom", "diverged"})
        self.assertEqual({r["provenance"] for r in records.values()}, {"measured", "predicted"})
        self.assertIn("4 runs", self.convert("store").stdout)
        runs = self.runs()
        self.assertEqual(set(runs), set(records))
        for key, run in runs.items():
            self.check(run, records[key])
        odd = runs["f" * 16]
        self.assertEqual(odd.run.notes, NAME)
        self.assertNotIn("\n", odd.run.display_name + odd.run.run_group)
        self.assertLessEqual(max(len(odd.run.display_name), len(odd.run.run_group)), 128)
        self.assertEqual(odd.run.run_id.split("-")[0], "f" * 16)

    def test_timelines_have_the_cells_peaks(self):
        records = self.store()
        self.convert("store", "-o", "out/deep")
        for key, run in self.runs("out/deep").items():
            held = [value for _, value in run.series("timeline/allocated_bytes")]
            if records[key]["status"] != "ok":
                continue
            self.assertEqual(max(held), records[key]["step_peaks_bytes"][-1])
            self.assertEqual(held[-1], records[key]["live_bytes"][-1])
            measured = records[key]["provenance"] == "measured"
            axis = "timeline/time_ms" if measured else "timeline/event"  # plan:cpu tells no time
            self.assertEqual(run.axes["timeline/*"], axis)
            places = [value for _, value in run.series(axis)]
            self.assertEqual((places[0], places), (0, sorted(places)))
            self.assertEqual(len(run.series("timeline/time_ms")), len(held) if measured else 0)
            self.assertGreater(len(held), 100)

    def test_twice_is_once(self):
        self.store()
        self.convert("store")
        before = {path: path.stat().st_mtime_ns for path in (self.folder / "wandb").rglob("*")}
        self.assertEqual(len(list((self.folder / "wandb").iterdir())), 4)
        self.assertIn("0 runs written to wandb, 4 were there", self.convert("store").stdout)
        self.assertEqual({path: path.stat().st_mtime_ns for path in (self.folder / "wandb").rglob("*")}, before)
        # The same from the records alone; a cell measured again is another run.
        path = self.folder / "records.jsonl"
        self.run_program("export", "store", "-f", "jsonl", "-o", path)
        self.assertIn("0 runs", self.convert(path.name).stdout)
        again = strict_json(path.read_text(encoding="utf-8").splitlines()[0])
        again["created_utc"] = "2031-01-01T00:00:00Z"
        path.write_text(json.dumps(again) + "\n", encoding="utf-8")
        self.assertIn("1 run written", self.convert(path.name).stdout)
        names = [folder.name for folder in (self.folder / "wandb").iterdir()]
        self.assertEqual(len(names), 5)
        self.assertIn("offline-run-20310101_000000-" + again["cell_key"], " ".join(names))

    def test_an_output_that_cannot_be_written(self):
        self.store()
        (self.folder / "taken").write_text("")
        self.assertIn("taken", self.convert("store", "-o", "taken/runs", code=3).stderr)
        self.assertIn("taken", self.convert("store", "-o", "taken", code=3).stderr)


if __name__ == "__main__":
    main()
