"""vramlab export: every format is read back by what reads it, with hostile names, unknown numbers and a locale that has a
decimal comma. (Readers that have to be installed: test_export_readers.py.)"""

import csv
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as xml

from program import ProgramTest, main, strict_json

NAME = 'a,b "c" <d> & \'e\' ü\n{f}'
CATEGORIES = {"parameter", "gradient", "optimizer", "activation", "input", "workspace", "communication"}


class PlainUnpickler(pickle.Unpickler):
    """Built-in types only, as the viewer's reader."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def check_snapshot(snapshot):
    """Segments are tiled by their blocks, and played backwards, as the viewer does, the trace takes each block from memory that
    is there, and ends with nothing."""
    live, memory = {}, Ranges()
    for segment in snapshot["segments"]:
        place = segment["address"]
        memory.add(place, segment["total_size"], whole=True)
        for block in segment["blocks"]:
            assert block["address"] == place
            place += block["size"]
            if block["state"] == "active_allocated":
                live[block["address"]] = block["size"]
        assert place == segment["address"] + segment["total_size"] and segment["device"] == 0
        assert segment["allocated_size"] == sum(b["size"] for b in segment["blocks"] if b["state"] != "inactive")
    blocks = sorted(live.items())
    assert all(a + size <= b for (a, size), (b, _) in zip(blocks, blocks[1:]))
    events = snapshot["device_traces"][0]
    for event in reversed(events):
        action = event["action"]
        if action == "free_completed":
            assert event["addr"] not in live and memory.holds(event["addr"], event["size"])
            live[event["addr"]] = event["size"]
        elif action == "alloc":
            assert live.pop(event["addr"]) == event["size"] and memory.holds(event["addr"], event["size"])
        elif action in ("segment_free", "segment_unmap"):
            # The viewer forgets the streams of events where all are 0, and joins parts of one stream only.
            assert action == "segment_free" or event["stream"] != 0
            memory.add(event["addr"], event["size"], whole=action == "segment_free")
        elif action in ("segment_alloc", "segment_map"):
            memory.remove(event["addr"], event["size"], whole=action == "segment_alloc")
    assert not live and not memory.ranges
    assert any(event.get("category") == "unknown" for event in events)
    return events


class Ranges:
    """What memory there is: by its address, where it ends. A whole one stays apart from those it touches."""

    def __init__(self):
        self.ranges = {}

    def around(self, address, size):
        return [a for a, end in self.ranges.items() if a <= address and address + size <= end]

    def holds(self, address, size):
        return len(self.around(address, size)) == 1

    def add(self, address, size, whole):
        end = address + size
        assert all(b <= address or a >= end for a, b in self.ranges.items())
        if not whole:
            end = self.ranges.pop(end, end)
            for a in [a for a, b in self.ranges.items() if b == address]:
                address = a
        self.ranges[address] = end

    def remove(self, address, size, whole):
        (a,) = self.around(address, size)
        end = self.ranges.pop(a)
        if whole:
            assert (a, end) == (address, address + size)
        if a < address:
            self.ranges[a] = address
        if address + size < end:
            self.ranges[address + size] = end


class Export(ProgramTest):
    def store(self):
        """Cells that ran, one without memory enough, and one with a name that has everything in it."""
        for recipe in ("baseline", "allocator=expandable", "allocator=caching defragment=every-step"):
            self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--batch", "2", "--recipe", recipe,
                             "--timeline", "-o", "store", "-q")
        self.run_program("plan", "--case", "bert-base", "--batch", "2", "--capacity", "1MiB", "-o", "store", "-q", code=1)
        journal = self.folder / "store/journal.jsonl"
        lines = journal.read_text(encoding="utf-8").splitlines()
        odd = strict_json(lines[-1])
        odd.update(cell_key="ffffffffffffffff", settings=NAME, error=NAME, status="crashed", needed_bytes=None)
        journal.write_text("\n".join([*lines, json.dumps(odd)]) + "\n", encoding="utf-8")
        return "store"

    def export(self, store, name, *more, **environment):
        self.run_program("export", store, "--format", name, "-o", f"out.{name}", *more, **environment)
        return self.folder / f"out.{name}"

    def check_all(self, store, **environment):
        rows = list(csv.DictReader(io.StringIO(self.export(store, "csv", **environment).read_bytes().decode(), newline="")))
        records = [strict_json(line) for line in
                   self.export(store, "jsonl", **environment).read_text(encoding="utf-8").splitlines()]
        self.assertEqual(len(rows), len(records))
        for row, record in zip(rows, records):
            self.assertEqual(row["settings"], record["settings"] or "")
            for name, kind in (("peak_allocated_bytes", int), ("timeout_s", float), ("cached_free_bytes", int)):
                self.assertEqual(kind(row[name]) if row[name] else None, record[name], name)
        self.assertEqual(rows[-1]["settings"], NAME)
        self.assertEqual(rows[-1]["needed_bytes"], "")

        tests = xml.parse(self.export(store, "junit", **environment)).getroot()
        self.assertEqual((tests.get("failures"), tests.get("tests")), ("1", str(len(rows))))
        self.assertEqual(tests.findall("testcase")[-1].find("failure").get("message").replace("\n", " "), NAME.replace("\n", " "))

        gauges = self.export(store, "prometheus", **environment).read_text(encoding="utf-8")
        label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
        line = re.compile(rf"vramlab_[a-z_]+\{{{label}(?:,{label})*\}} [0-9.e+-]+")
        for text in gauges.splitlines():
            self.assertTrue(text.startswith("# ") or line.fullmatch(text), text)
        self.check_trace(strict_json(self.export(store, "trace", **environment).read_text(encoding="utf-8")))

    def check_trace(self, events):
        """Slices of a track do not overlap, lifetimes end once and after they began, counters are never negative."""
        slices, alive = {}, set()
        for event in events:
            if event["ph"] == "X":
                track = event["pid"], event["tid"]
                self.assertGreaterEqual(event["ts"], slices.get(track, 0.0) - 1e-3)
                slices[track] = event["ts"] + event["dur"]
            elif event["ph"] == "b":
                self.assertNotIn((event["pid"], event["id2"]["local"]), alive)
                alive.add((event["pid"], event["id2"]["local"]))
            elif event["ph"] == "e":
                alive.remove((event["pid"], event["id2"]["local"]))
            elif event["ph"] == "C":
                self.assertTrue(all(value >= 0 for value in event["args"].values()))
                self.assertTrue(set(event["args"]) == CATEGORIES or set(event["args"]) == {"bytes"})
        self.assertEqual(len(slices), 3)
        self.assertEqual({event["name"] for event in events if event["ph"] == "X"}, {"forward", "backward", "update"})

    def test_ops_lie_within_their_segments_and_memory_keeps_their_time(self):
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--steps", "1",
                         "--timeline", "-o", "ran", "-q")
        self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--profile", "H200", "--timeline", "-o", "ran", "-q")
        events = strict_json(self.export("ran", "trace").read_text(encoding="utf-8"))
        for process in (1, 2):
            own = [event for event in events if event["pid"] == process]
            slices = [event for event in own if event["ph"] == "X"]
            segments, ops = ([e for e in slices if (e["tid"] == process) == whole] for whole in (True, False))
            self.assertEqual([s["name"] for s in segments], ["forward", "backward", "update"])
            self.assertGreater(len(ops), 90)
            end = 0.0
            for op in ops:
                (around,) = (s for s in segments if s["name"] == op["cat"])
                self.assertGreaterEqual(op["ts"], max(around["ts"], end) - 1e-3)
                end = op["ts"] + op["dur"]
                self.assertLessEqual(end, around["ts"] + around["dur"] + 2e-3)
                self.assertGreaterEqual(op["args"]["flops"], 0)
                self.assertTrue(op["args"]["implementation"])
            self.assertAlmostEqual(max(e["ts"] for e in own if e["ph"] == "C"), end, places=3)
            times = [event["ts"] for event in own if event["ph"] == "C"]
            self.assertEqual(times, sorted(times))
        self.assertIn("jit", " ".join(e["args"]["implementation"] for e in events if e["ph"] == "X" and e["tid"] != e["pid"]))
        # Moved without its directory, and in another store, a cell keeps them.
        shutil.copy(self.folder / "ran/results.h5", self.folder / "alone.h5")
        self.run_program("import", "--store", "copied", "ran")
        for store in ("alone.h5", "copied"):
            self.assertEqual(strict_json(self.export(store, "trace").read_text(encoding="utf-8")), events)

    def test_the_time_of_planning_is_no_time_of_the_step(self):
        """A plan without a profile tells none: events are a microsecond apart, and the trace says so."""
        self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--timeline", "-o", "paper", "-q")
        events = strict_json(self.export("paper", "trace").read_text(encoding="utf-8"))
        (labels,) = (event["args"]["labels"] for event in events if event["name"] == "process_labels")
        key = self.journal("paper")[1]["cell_key"]
        self.assertEqual(labels, f"{key},no times: events are a microsecond apart")
        self.assertTrue(all(event["ts"] == int(event["ts"]) for event in events if "ts" in event))
        with open(self.export("paper", "torch-snapshot"), "rb") as file:
            steps = PlainUnpickler(file).load()["device_traces"][0]
        self.assertTrue(all(0 <= b["time_us"] - a["time_us"] <= 1 for a, b in zip(steps, steps[1:])))

    def test_every_format_is_read_back(self):
        self.check_all(self.store())

    def test_a_decimal_comma_changes_nothing(self):
        self.check_all(self.store(), **self.comma_locale())

    def test_snapshots_play_backwards(self):
        store = self.store()
        keys = [r["cell_key"] for r in self.journal(store)[1:] if r["status"] == "ok"]
        for key in keys:
            with open(self.export(store, "torch-snapshot", "--cell", key), "rb") as file:
                events = check_snapshot(PlainUnpickler(file).load())
            self.assertGreater(sum(event["action"] == "alloc" for event in events), 50)
            # What was there before the step has its category too.
            self.assertLess({"parameter", "optimizer", "activation", "gradient"}, {event.get("category") for event in events})

    def test_snapshots_of_segments_that_grow_and_shrink_play_backwards(self):
        """Steps that run out of memory are first ones, which reserve; remapping unmaps what lies in the middle."""
        for recipe in ("allocator=expandable", "allocator=expandable:remap=always", "allocator=caching:gc=0.5", "allocator=planned"):
            self.run_program("plan", "--case", "bert-base", "--set", "layers=2", "--batch", "8", "--capacity", "700MiB", "--recipe",
                             recipe, "--timeline", "-o", "full", "-q", code=1)
        self.run_program("plan", "--case", "unet3d", "--queue", "64:2,96:2,80:2", "--batch", "2", "--recipe",
                         "allocator=expandable:remap=always", "--timeline", "-o", "full", "-q")
        actions = set()
        for record in self.journal("full")[1:]:
            with open(self.export("full", "torch-snapshot", "--cell", record["cell_key"]), "rb") as file:
                actions.update(event["action"] for event in check_snapshot(PlainUnpickler(file).load()))
        self.assertLess({"segment_alloc", "segment_map", "segment_unmap", "oom"}, actions)

    def test_tensorboard_records_have_their_checksums(self):
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--steps", "3", "-o",
                         "ran", "-q")
        self.run_program("export", "ran", "--format", "tensorboard", "-o", "runs")
        (path,) = (self.folder / "runs").glob("*/events.out.tfevents.*")
        data, count = path.read_bytes(), 0
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            self.assertEqual(struct.unpack("<I", data[8:12])[0], masked_crc(data[:8]))
            self.assertEqual(struct.unpack("<I", data[12 + length:16 + length])[0], masked_crc(data[12:12 + length]))
            data, count = data[16 + length:], count + 1
        self.assertGreater(count, 4 + 3 + 4)  # losses, times and memory of the steps, and the version

    def test_one_unit_a_memory_column_a6(self):
        header = self.export(self.store(), "csv").read_text(encoding="utf-8").splitlines()[0].split(",")
        for name in header:
            self.assertIsNone(re.search(r"_(mb|gb|kb|mib|gib|kib)(_|$)", name), name)
        self.assertIn("needed_bytes", header)

    def test_usage(self):
        store = self.store()
        self.refuses("export", store, says="--format")
        self.refuses("export", store, "--format", "xls", says=["xls", "csv, jsonl"])
        self.refuses("export", store, "--format", "tensorboard", says="--output")
        self.refuses("export", store, "--format", "torch-snapshot", says="choose with --cell")
        self.refuses("export", store, "--format", "csv", "--cell", "zz", says="zz")
        self.refuses("export", store, "--format", "csv", "-o", "no/where", says="no/where", code=3)
        self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "-o", "plain", "-q")
        self.refuses("export", "plain", "--format", "trace", "-o", "t.json", says="--timeline")
        self.assertFalse((self.folder / "t.json").exists() or os.path.exists(self.folder / "t.json.tmp"))


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


if __name__ == "__main__":
    main()
