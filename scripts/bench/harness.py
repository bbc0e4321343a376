#!/usr/bin/env python3
"""What the harness costs a cell, apart from the cell itself: 1,000 planned cells, and measured ones.

A suite of planned cells (ResNet-50 and a small BERT under ten recipes each) runs into a new store. From its time go that
of running it again, when every cell is there (start, report), and the planning, which is the worker's processor time. The
same suite with cells that cost nothing (vramlab_obedient) says what making the records costs too. Measured cells are a
tiny BERT: from their time go building and steps, as their records tell.

Writes results/bench-harness.json (raw times, sizes, provenance) and prints the medians. Exit code 1: a limit is passed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECIPES = ["baseline", "amp=bf16", "amp=fp16", "checkpoint=1", "checkpoint=2", "stack=vramlab", "stack=vramlab amp=bf16",
           "allocator=expandable", "allocator=planned"]
SMALL_BERT = "{layers: 2, hidden: 64, heads: 4, vocabulary: 1000, sequence: 64}"
LIMITS = {"planned_ms_per_cell": 5, "free_ms_per_cell": 5, "measured_ms_per_cell": 200, "store_bytes": 20_000_000,
          "report_s": 10}


def planned_suite(cells):
    """YAML of that many planned cells: two cases, ten recipes each, batches from 1 on."""
    batches = list(range(1, cells // 20 + 1))
    return f"""name: harness-planned
defaults: {{device: plan, steps: 2, batch: {batches}}}
cells:
  - {{case: resnet50, settings: {{size: 64}}, recipe: {json.dumps(RECIPES + ["pool-index=u8"])}}}
  - {{case: bert-base, settings: {SMALL_BERT}, recipe: {json.dumps(RECIPES + ["attention=fused"])}}}
"""


def measured_suite(cells):
    return f"""name: harness-measured
defaults: {{device: cpu, steps: 1, case: bert-base, settings: {SMALL_BERT}, batch: {list(range(1, cells + 1))}}}
axes: {{recipe: [baseline]}}
"""


def cpu_s_of(pid):
    """Processor time of all threads of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Workers:
    """Watches the processor time of a process's children, which are the workers."""

    def __init__(self, pid):
        self.pid, self.cpu_s, self.ended = pid, {}, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.01):
            try:
                with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as children:
                    pids = children.read().split()
            except OSError:
                return
            for pid in pids:
                self.cpu_s[pid] = max(self.cpu_s.get(pid, 0.0), cpu_s_of(pid))

    def total(self):
        self.ended.set()
        self.thread.join()
        return max(self.cpu_s.values(), default=0.0)


def run(program, command, suite, store):
    """Seconds of a run of a suite into a store, and processor seconds of its longest worker."""
    start = time.monotonic()
    with subprocess.Popen([program, command, suite, "-q", "-o", store], stdout=subprocess.DEVNULL) as process:
        workers = Workers(process.pid)
        code = process.wait()
    elapsed_s = time.monotonic() - start
    if code != 0:
        sys.exit(f"{program} {command} {suite}: exit code {code}")
    return elapsed_s, workers.total()


def records_of(store):
    with open(os.path.join(store, "journal.jsonl"), encoding="utf-8") as journal:
        return [json.loads(line) for line in journal][1:]


def bytes_of(store):
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(store) for name in names)


def cost(program, command, text, own_s):
    """Runs a suite twice into one store; own_s(records, worker's seconds) is what the cells themselves took."""
    with tempfile.TemporaryDirectory() as folder:
        suite, store = os.path.join(folder, "suite.yaml"), os.path.join(folder, "store")
        with open(suite, "w", encoding="utf-8") as file:
            file.write(text)
        run_s, worker_s = run(program, command, suite, store)
        again_s, _ = run(program, command, suite, store)
        start = time.monotonic()
        subprocess.run([program, "report", store, "--format", "html"], check=True, stdout=subprocess.DEVNULL)
        report_s = time.monotonic() - start
        records = records_of(store)
        cells_s = own_s(records, worker_s)
        return {"cells": len(records), "run_s": run_s, "again_s": again_s, "cells_s": cells_s, "report_s": report_s,
                "store_bytes": bytes_of(store), "ms_per_cell": 1e3 * (run_s - again_s - cells_s) / len(records),
                }, records[0]


def build_and_steps_s(records, _):
    return sum(r["build_s"] + r["step_s"] * (r["steps"] + r["warmup"]) for r in records)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cells", type=int, default=1000, help="planned cells, a multiple of 20")
    p.add_argument("--measured", type=int, default=20, help="measured cells")
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "cpu", "bin"))
    p.add_argument("--results", default=os.path.join(ROOT, "results"))
    a = p.parse_args()
    if a.cells < 20 or a.cells % 20 != 0:
        p.error("--cells must be a multiple of 20")
    real, obedient = os.path.join(a.bin, "vramlab"), os.path.join(a.bin, "vramlab_obedient")
    kinds = {"planned": [], "free": [], "measured": []}
    first = None
    for _ in range(a.runs):
        figures, first = cost(real, "plan", planned_suite(a.cells), lambda _, worker_s: worker_s)
        kinds["planned"].append(figures)
        kinds["free"].append(cost(obedient, "plan", planned_suite(a.cells), lambda *_: 0.0)[0])
        kinds["measured"].append(cost(real, "run", measured_suite(a.measured), build_and_steps_s)[0])
    medians = {f"{kind}_ms_per_cell": statistics.median(run["ms_per_cell"] for run in runs) for kind, runs in kinds.items()}
    medians["store_bytes"] = max(run["store_bytes"] for run in kinds["planned"])
    medians["report_s"] = statistics.median(run["report_s"] for run in kinds["planned"])
    result = dict(benchmark="harness", medians=medians, limits=LIMITS, runs=kinds,
                  created_utc=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), hardware=first["hardware"],
                  threads=first["threads"], library=first["library"], git_commit=first["git_commit"],
                  git_dirty=first["git_dirty"])
    os.makedirs(a.results, exist_ok=True)
    path = os.path.join(a.results, "bench-harness.json")
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(path + ".tmp", path)
    passed = [name for name, limit in LIMITS.items() if medians[name] >= limit]
    for name, limit in LIMITS.items():
        print(f"{name:22} {medians[name]:14.3f}  limit {limit}{'  TOO MUCH' if name in passed else ''}")
    print(f"written {path}")
    sys.exit(1 if passed else 0)


if __name__ == "__main__":
    main()
