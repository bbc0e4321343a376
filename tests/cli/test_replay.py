"""`vramlab replay`: traces of stores, and of PyTorch's snapshots in the shapes that its versions write."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

from program import ProgramTest, main, strict_json

CONVERTER = Path(__file__).parents[2] / "scripts/data/pytorch_snapshot.py"
MIB = 1 << 20
FRAMES = [
    {"name": "_conv_forward", "filename": "/usr/lib/python3/torch/nn/conv.py", "line": 300},
    {"name": "forward", "filename": "/home/me/net.py", "line": 12},
    {"name": "main", "filename": "/home/me/train.py", "line": 40}]


class Recorder:
    """What an allocator would have recorded, written as one of PyTorch's versions does."""

    def __init__(self, version, devices=1):
        self.version, self.time_us = version, 1000
        self.segments, self.annotations = [], []
        self.traces = [[] for _ in range(devices)]

    def event(self, device, action, address, size, stream=0, **more):
        event = {"action": action, "addr": address, "size": size, "stream": stream, **more}
        if action == "oom":
            event["device_free"] = event.pop("addr")
        if self.version >= (2, 1):
            event["time_us"] = self.time_us
        self.time_us += 10
        self.traces[device].append(event)

    def segment(self, address, size, stream=0, device=0, recorded=True, expandable=False):
        made = {"device": device, "address": address, "total_size": size, "stream": stream, "blocks": [],
                "allocated_size": 0, "active_size": 0, "segment_type": "large" if size > 2 * MIB else "small"}
        if self.version >= (2, 1):
            made.update(segment_pool_id=(0, 0), is_expandable=expandable, frames=[])
        self.segments.append(made)
        if recorded:
            self.event(device, "segment_map" if expandable else "segment_alloc", address, size, stream)

    def alloc(self, address, size, stream=0, device=0, state="active_allocated", **more):
        """A block of `size`, 4 bytes less asked for; it is in the segments until it is freed."""
        self.event(device, "alloc", address, size - 4, stream, frames=FRAMES, **more)
        self.hold(address, size, device, state)

    def hold(self, address, size, device=0, state="active_allocated"):
        """A block whose beginning was not recorded."""
        segment = next(s for s in self.segments if s["device"] == device and
                       s["address"] <= address < s["address"] + s["total_size"])
        segment["blocks"].append([address, size, state])

    def free(self, address, device=0, pending=False):
        for segment in self.segments:
            for block in segment["blocks"]:
                if block[0] == address and segment["device"] == device:
                    self.event(device, "free_requested", address, block[1] - 4, segment["stream"])
                    if pending:
                        block[2] = "active_pending_free" if self.version >= (2, 0) else "active_awaiting_free"
                        return
                    segment["blocks"].remove(block)
                    self.event(device, "free_completed", address, block[1] - 4, segment["stream"])
                    return

    def step(self, name):
        self.annotations.append({"device": 0, "name": name, "stage": "END", "time_us": self.time_us - 5})

    def snapshot(self, lost=0):
        """lost: events that had left the ring before it was taken."""
        segments = []
        for segment in self.segments:
            made, at = dict(segment, blocks=[]), segment["address"]
            end = at + segment["total_size"]
            for address, size, state in sorted(segment["blocks"]) + [[end, 0, ""]]:
                if address > at:
                    made["blocks"].append(self.block(at, address - at, "inactive"))
                if size:
                    made["blocks"].append(self.block(address, size, state))
                at = address + size
            segments.append(made)
        whole = {"segments": segments, "device_traces": [trace[lost:] for trace in self.traces]}
        if self.version >= (2, 5):
            whole["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                                           "max_split_size": 64 * MIB,
                                           "roundup_power2_divisions": {}, "expandable_segments": False}
            whole["external_annotations"] = self.annotations
        return whole

    def block(self, address, size, state):
        if self.version >= (2, 1):
            return {"address": address, "size": size, "state": state, "frames": FRAMES,
                    "requested_size": size - 4 if state != "inactive" else 0}
        made = {"size": size, "state": state}
        if state != "inactive":
            made["history"] = [{"addr": address, "real_size": size - 4, "frames": FRAMES}]
        return made


def small_job(version):
    """A weight from before, an activation that is freed, one that stays, and one in another stream."""
    job = Recorder(version)
    job.segment(1 << 40, 20 * MIB, recorded=False)
    job.hold(1 << 40, 4 * MIB)
    job.hold((1 << 40) + 4 * MIB, 2 * MIB)
    job.segment(2 << 40, 20 * MIB)
    job.alloc(2 << 40, 6 * MIB, category="activation")
    job.alloc((2 << 40) + 6 * MIB, 3 * MIB)
    job.free((1 << 40) + 4 * MIB)
    job.free(2 << 40)
    job.segment(3 << 40, 2 * MIB, stream=94857)
    job.alloc(3 << 40, 512, stream=94857)
    job.free(3 << 40, pending=True)
    return job


class ReplayTest(ProgramTest):

    def convert(self, snapshot, *options, code=0):
        path = self.folder / "snapshot.pickle"
        path.write_bytes(snapshot if isinstance(snapshot, bytes) else pickle.dumps(snapshot))
        done = subprocess.run([sys.executable, "-B", CONVERTER, path, self.folder / "trace.jsonl", *options],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def lines(self):
        return [strict_json(line) for line in (self.folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()]

    def replay(self, *arguments):
        return strict_json(self.run_program("replay", *arguments, "--json").stdout)

    def refuses_snapshot(self, snapshot, says, *options):
        done = self.convert(snapshot, *options, code=2)
        self.assertIn("snapshot.pickle", done.stderr)
        self.assertIn(says, done.stderr)
        self.assertFalse((self.folder / "trace.jsonl").exists())

    def test_snapshots_of_our_own_keep_their_categories(self):
        self.run_program("plan", "--case", "bert-base", "--set", "layers=1", "--timeline", "-q", "-o", "store")
        self.run_program("export", "store", "-f", "torch-snapshot", "-o", "own.pickle")
        self.convert((self.folder / "own.pickle").read_bytes())
        obtained = [event for event in self.lines() if event.get("action") == "obtain"]
        self.assertEqual({event.get("category") for event in obtained},
                         {"parameter", "optimizer", "input", "activation", "workspace", "gradient"})

    def test_every_shape_gives_the_same_trace(self):
        for version in (1, 13), (2, 0), (2, 1), (2, 5):
            with self.subTest(version):
                self.convert(small_job(version).snapshot())
                head, *events = self.lines()
                self.assertEqual(head["reserved_peak_bytes"], 42 * MIB)
                self.assertEqual("max_split_size_mb:64" in head["source"], version >= (2, 5))
                told = [(e["action"], e.get("address"), e.get("bytes"), e.get("stream", 0)) for e in events]
                # The block freed is known by its free alone; the one that waits for a stream is in use.
                self.assertEqual(told, [
                    ("obtain", 1 << 40, 4 * MIB - 4, 0), ("obtain", (1 << 40) + 4 * MIB, 2 * MIB - 4, 0),
                    ("obtain", 2 << 40, 6 * MIB - 4, 0), ("obtain", (2 << 40) + 6 * MIB, 3 * MIB - 4, 0),
                    ("release", (1 << 40) + 4 * MIB, None, 0), ("release", 2 << 40, None, 0),
                    ("obtain", 3 << 40, 508, 1)])
                self.assertEqual((events[3]["name"], events[3]["scope"]), ("forward", "net.py:12"))
                self.assertEqual(events[2]["category"], "activation")
                self.assertNotIn("category", events[3])
                replayed = self.replay("trace.jsonl")
                self.assertEqual(replayed["lower_bound_bytes"], 15 * MIB)
                self.assertEqual(replayed["recorded_reserved_peak_bytes"], 42 * MIB)
                # Small blocks in 2 MiB of their own stream, the others in one segment.
                self.assertEqual(replayed["policies"][0]["peak_reserved_bytes"], 22 * MIB)

    def test_what_a_ring_lost_is_made_up(self):
        whole, lost = small_job((2, 1)).snapshot(), small_job((2, 1)).snapshot(lost=3)
        self.convert(whole)
        before = self.lines()
        done = self.convert(lost)
        after = self.lines()
        self.assertIn("4 blocks of", done.stderr)
        self.assertIn("2 known from the segments, 2 by their free alone", done.stderr)
        self.assertNotIn("left out", done.stderr)
        self.assertEqual(after[0]["reserved_peak_bytes"], before[0]["reserved_peak_bytes"])
        self.assertEqual(sorted(e["address"] for e in after[1:5]), sorted(e["address"] for e in before[1:5]))
        self.assertEqual(after[5:], before[5:])

    def test_contradictions_are_counted(self):
        snapshot = small_job((2, 1)).snapshot()
        trace = snapshot["device_traces"][0]
        again = next(e for e in trace if e["action"] == "free_completed")
        trace.append(dict(again))
        trace.append({"action": "alloc", "addr": (2 << 40) + 8 * MIB, "size": 2 * MIB, "stream": 0})
        trace.append({"action": "teleport", "addr": 1, "size": 1, "stream": 0})
        done = self.convert(snapshot)
        self.assertIn("1 frees of blocks that were not in use", done.stderr)
        self.assertIn("1 blocks obtained where others were still in use", done.stderr)
        self.assertIn("1 events of the unknown action 'teleport'", done.stderr)
        self.replay("trace.jsonl")

    def test_running_out_gives_the_capacity(self):
        job = small_job((2, 5))
        job.event(0, "oom", 7 * MIB, 31 * MIB)
        self.convert(job.snapshot())
        head, *events = self.lines()
        self.assertEqual(head["capacity_bytes"], 49 * MIB)
        self.assertEqual((events[-1]["action"], events[-1]["bytes"]), ("failed", 31 * MIB))
        replayed = self.replay("trace.jsonl")
        self.assertEqual(replayed["capacity_bytes"], 49 * MIB)
        caching = replayed["policies"][0]
        # In use are 7 MiB and 512 bytes; 31 of the other 41 would have been there.
        self.assertEqual((caching["status"], caching["oom_reason"], caching["oom_event"]), ("oom", "fragmented", 7))
        told = self.run_program("replay", "trace.jsonl").stdout
        self.assertIn("out of memory (fragmented) at event 8, for 31.00 MiB", told)
        self.assertEqual(self.replay("trace.jsonl", "--capacity", "54MiB")["policies"][0]["status"], "ok")

    def test_steps_are_where_annotations_end(self):
        job = Recorder((2, 5))
        job.segment(0, 20 * MIB)
        for i in range(3):
            job.alloc(0, MIB)
            job.free(0)
            job.step(f"Optimizer.step#SGD.step {i}")
        self.convert(job.snapshot())
        self.assertEqual([e["action"] for e in self.lines()[1:]], ["obtain", "release", "step"] * 3)
        self.assertEqual(self.replay("trace.jsonl")["steps"], 3)

    def test_devices_are_chosen(self):
        job = Recorder((2, 1), devices=3)
        for device in 0, 2:
            job.segment((device + 1) << 40, 20 * MIB, device=device)
            job.alloc((device + 1) << 40, (device + 1) * MIB, device=device)
        self.refuses_snapshot(job.snapshot(), "choose one with --device: 0 (2 events), 2 (2 events)")
        self.refuses_snapshot(job.snapshot(), "no events of device 1; accepted: 0, 2", "--device", "1")
        self.convert(job.snapshot(), "--device", "2")
        self.assertEqual(self.lines()[1]["address"], 3 << 40)

    def test_bad_snapshots_are_refused(self):

        class Runs:

            def __reduce__(self):
                return os.system, ("touch ran",)

        snapshot = small_job((2, 1)).snapshot()
        whole = pickle.dumps(snapshot)
        self.refuses_snapshot(pickle.dumps({"segments": [Runs()]}), "accepted: built-in types only")
        self.assertFalse((self.folder / "ran").exists() or Path("ran").exists())
        self.refuses_snapshot(whole[:len(whole) // 2], "not a whole pickle")
        self.refuses_snapshot(b"", "not a whole pickle")
        # A memo of 2^32 places.
        self.refuses_snapshot(b"\x80\x02}r\xff\xff\xff\xffX.", "bytes of memory: not a snapshot")
        self.refuses_snapshot(snapshot["segments"], "is a list of segments")
        self.refuses_snapshot(7, "holds a int")
        self.refuses_snapshot({"segments": []}, "no \"device_traces\"")
        self.refuses_snapshot(dict(snapshot, device_traces=[[]]), "no event was recorded")
        for key, value, says in (
                ("size", -1, "[\"size\"] is -1; accepted: 0 to"), ("size", 1 << 70, "accepted: 0 to"),
                ("size", 10**5000, "a number of 16610 bits"), ("size", "x", "is 'x'; accepted: int"),
                ("addr", None, "is a NoneType; accepted: int"), ("action", 3, "is 3; accepted: str")):
            with self.subTest(key, value=str(type(value))):
                trace = [dict(event) for event in snapshot["device_traces"][0]]
                trace[2][key] = value
                self.refuses_snapshot(dict(snapshot, device_traces=[trace]), says)
        for key, value, says in (("total_size", -5, "accepted: 0 to"), ("blocks", 3, "accepted: list"),
                                 ("blocks", [{"size": 1, "state": "lost"}], "accepted: active_allocated")):
            with self.subTest(key):
                self.refuses_snapshot(dict(snapshot, segments=[dict(snapshot["segments"][0], **{key: value})]), says)

    def test_texts_of_any_kind_pass(self):
        job = Recorder((2, 1))
        job.segment(0, 20 * MIB)
        job.alloc(0, MIB, user_metadata="a\0b\ud800" + "é" * 5000)
        self.convert(job.snapshot())
        self.assertTrue(self.lines()[1]["name"].startswith("a?b?éé"))
        self.replay("trace.jsonl")

    def test_the_step_of_a_store(self):
        self.run_program("plan", "--case", "resnet50", "--set", "size=64", "--batch", 4, "-o", "store", "--timeline",
                         "--recipe", "amp=bf16")
        record = self.journal("store")[1]
        replayed = self.replay("store", "--write", "trace.jsonl")
        self.assertIn("resnet50, batch 4, amp=bf16", replayed["source"])
        self.assertLessEqual(replayed["lower_bound_bytes"], record["peak_allocated_bytes"])
        self.assertGreater(replayed["lower_bound_bytes"], 0.9 * record["peak_allocated_bytes"])
        again = self.replay("trace.jsonl")
        for row in replayed["policies"] + again["policies"]:
            row.pop("ns_per_event")
        self.assertEqual(again["policies"], replayed["policies"])
        self.assertEqual(again["lower_bound_bytes"], replayed["lower_bound_bytes"])
        self.refuses("replay", "store", "--cell", "zz", says=("no such cell kept its timeline", "resnet50, batch 4"))
        self.run_program("plan", "--case", "resnet50", "--set", "size=64", "--batch", 8, "-o", "store", "--timeline")
        self.refuses("replay", "store", says=("several cells kept", "batch 4", "batch 8"))
        self.run_program("replay", "store", "--cell", record["cell_key"][:8])
        self.run_program("replay", "store/results.h5", "--cell", record["cell_key"])

    def test_a_step_that_failed(self):
        cell = "plan", "--case", "resnet50", "--set", "size=64", "--batch", "64", "--json"
        needed = strict_json(self.run_program(*cell).stdout)["peak_reserved_bytes"]
        capacity = needed * 8 // 10
        failed = strict_json(self.run_program(*cell, "--capacity", capacity, "-o", "store", "--timeline",
                                              code=1).stdout)
        replayed = self.replay("store")
        self.assertIn("the failed step of resnet50", replayed["source"])
        self.assertEqual(replayed["capacity_bytes"], capacity)
        caching = replayed["policies"][0]
        self.assertEqual((caching["status"], caching["oom_request_bytes"]), ("oom", failed["oom_request_bytes"]))
        told = self.run_program("replay", "store", "--quick").stdout
        self.assertIn("what would have come after that is not known", told)
        self.assertEqual(self.replay("store", "--capacity", 0)["policies"][0]["status"], "ok")

    def test_a_queue_of_sizes(self):
        """Batches are steps; what compaction moved is followed; and it and expandable segments reserve less."""
        for recipe in "baseline", "defragment=every-step", "allocator=expandable defragment=every-step":
            self.run_program("plan", "--case", "unet3d", "--queue", "96x64x64:4,64x48x48:4,128x96x96:2", "--batch", 2,
                             "--recipe", recipe, "-o", "store", "--timeline")
        lower_bounds = set()
        for record in self.journal("store")[1:]:
            replayed = self.replay("store", "--cell", record["cell_key"], "--write", "trace.jsonl", "--quick")
            rows = {row["name"]: row for row in replayed["policies"]}
            lower_bounds.add(replayed["lower_bound_bytes"])
            self.assertGreater(replayed["steps"], 5)
            for better in "caching, compacted", "expandable", "planned":
                self.assertLess(rows[better]["peak_reserved_bytes"], rows["caching"]["peak_reserved_bytes"])
            self.assertEqual(self.replay("trace.jsonl", "--quick")["lower_bound_bytes"], replayed["lower_bound_bytes"])
        self.assertEqual(len(lower_bounds), 1)

    def test_usage(self):
        self.refuses("replay", says="give a trace, or a store")
        self.refuses("replay", "nothing.jsonl", says="nothing.jsonl: No such file")
        (self.folder / "trace.jsonl").write_text('{"vramlab_trace":1}\n{"action":"obtain","address":0,"bytes":-1}\n',
                                                 encoding="utf-8")
        self.refuses("replay", "trace.jsonl",
                     says=("trace.jsonl:2: \"bytes\" is -1", "accepted: a whole number from 1"))
        self.refuses("replay", "trace.jsonl", "--cell", "a", says="--cell and --write are for a store")
        self.refuses("replay", "trace.jsonl", "--capacity", "much", says="--capacity")
        (self.folder / "snapshot.pickle").write_bytes(pickle.dumps({}))
        self.refuses("replay", "snapshot.pickle", says="scripts/data/pytorch_snapshot.py snapshot.pickle")
        self.run_program("plan", "--case", "resnet50", "--set", "size=64", "--batch", 4, "-o", "store")
        self.refuses("replay", "store", says="no cell of the store kept its timeline")


if __name__ == "__main__":
    main()
