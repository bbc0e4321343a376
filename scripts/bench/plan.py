#!/usr/bin/env python3
"""How long planning a whole suite takes: every cell of resnet-growth as device plan, in fresh processes.

Writes results/bench-plan.json (raw times, number of cells, provenance) and prints the median.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from datetime import datetime, timezone

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_once(a, directory):
    start = time.monotonic()
    subprocess.run([a.vramlab, "plan", a.suite, "-q", "-o", directory], check=True, stdout=subprocess.DEVNULL)
    elapsed_s = time.monotonic() - start
    with open(os.path.join(directory, "journal.jsonl")) as journal:
        records = [json.loads(line) for line in journal]
    return elapsed_s, [r for r in records if r.get("kind") == "cell"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", default="resnet-growth")
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--vramlab", default=os.path.join(ROOT, "build", "cpu", "bin", "vramlab"))
    p.add_argument("--results", default=os.path.join(ROOT, "results"))
    a = p.parse_args()
    times = []
    for _ in range(a.runs):
        with tempfile.TemporaryDirectory() as directory:
            elapsed_s, cells = run_once(a, os.path.join(directory, "store"))
        times.append(elapsed_s)
    first = cells[0]
    result = dict(benchmark="plan", suite=a.suite, cells=len(cells), elapsed_s=times,
                  created_utc=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                  hardware=first["hardware"], threads=first["threads"], library=first["library"],
                  git_commit=first["git_commit"], git_dirty=first["git_dirty"])
    os.makedirs(a.results, exist_ok=True)
    path = os.path.join(a.results, "bench-plan.json")
    with open(path + ".tmp", "w") as f:
        json.dump(result, f, indent=1, allow_nan=False)
    os.replace(path + ".tmp", path)
    print(f"{len(cells)} cells of {a.suite} planned, reports included, in {statistics.median(times):.2f} s "
          f"({min(times):.2f} to {max(times):.2f}, {a.runs} runs)\nwritten {path}")


if __name__ == "__main__":
    main()
