#!/usr/bin/env python3
"""Whether `vramlab compare` can be trusted: the suite compare-check, run again and again. Stores of the same program are
compared with the one before (a regression is a false alarm), stores whose steps were slowed down on purpose with the one
measured just before (it must be found), and stores with an allocation more (it must be found, with its category).

Writes results/bench-compare.json: of every comparison what it said and the ratios it saw, and where it ran. Stores are
kept in --work; a run that was cut off goes on with them. About 11 minutes on two quiet cores."""
import argparse
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLOWDOWN, ALLOCATION = "slowdown=0.05", "allocate=1MiB:activation"


def measure(a, name, *more):
    store = os.path.join(a.work, name)
    subprocess.run([a.vramlab, "run", a.suite, "-q", "-o", store, *more], check=True, stdout=subprocess.DEVNULL)
    return store


def compare(a, base, new):
    done = subprocess.run([a.vramlab, "compare", base, new, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    said = json.loads(done.stdout)
    differences = [d for cell in said["cells"] for d in cell["differences"]]
    assert (done.returncode == 1) == (said["summary"]["regressed"] > 0)
    return {"regressed": done.returncode == 1,
            "ratios": [d["ratio"] for d in differences if d["metric"] == "step_s"],
            "p": [d["p"] for d in differences if d["metric"] == "step_s"],
            "regressed_metrics": sorted({d["metric"] for d in differences if d["judgement"] == "regressed"})}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", default="compare-check")
    p.add_argument("--same", type=int, default=20, help="A/A comparisons")
    p.add_argument("--changed", type=int, default=10, help="of each injected fault")
    p.add_argument("--work", default="compare-bench", help="where the stores are kept")
    p.add_argument("--vramlab", default=os.path.join(ROOT, "build", "cpu", "bin", "vramlab"))
    p.add_argument("--results", default=os.path.join(ROOT, "results"))
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    same, slower, larger = [], [], []
    before, start = None, time.monotonic()
    for i in range(a.same + 1):
        base = measure(a, f"same-{i}")
        if before:
            same.append(compare(a, before, base))
        before = base
        if i < a.changed:
            slower.append(compare(a, base, measure(a, f"slower-{i}", "--inject", SLOWDOWN)))
            larger.append(compare(a, base, measure(a, f"larger-{i}", "--inject", ALLOCATION, "--repeat", "1")))
        print(f"{i} of {a.same}: {sum(c['regressed'] for c in same)} false alarms, "
              f"{sum(c['regressed'] for c in slower)} of {len(slower)} slowdowns found, "
              f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    with open(os.path.join(before, "journal.jsonl"), encoding="utf-8") as journal:
        first = [json.loads(line) for line in journal][1]
    category = ALLOCATION.rpartition(":")[2]
    named = [f"peak_{category}_bytes" in c["regressed_metrics"] for c in larger]
    result = {"benchmark": "compare", "suite": a.suite, "same": same, "slowdown": SLOWDOWN, "slower": slower,
              "allocation": ALLOCATION, "larger": larger, "false_alarms": sum(c["regressed"] for c in same),
              "slowdowns_found": sum("step_s" in c["regressed_metrics"] for c in slower), "allocations_named": sum(named),
              "created_utc": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "hardware": first["hardware"],
              "threads": first["threads"], "library": first["library"], "git_commit": first["git_commit"],
              "git_dirty": first["git_dirty"]}
    path = os.path.join(a.results, "bench-compare.json")
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1, allow_nan=False)
    os.replace(path + ".tmp", path)
    print(f"{result['false_alarms']} false alarms in {len(same)} comparisons of the same; "
          f"{result['slowdowns_found']} of {len(slower)} slowdowns of 5 % found; "
          f"{result['allocations_named']} of {len(larger)} allocations of 1 MiB found with their category\nwritten {path}")
    return result["false_alarms"] > 1 or result["slowdowns_found"] < 0.9 * len(slower) or not all(named)


if __name__ == "__main__":
    sys.exit(main())
