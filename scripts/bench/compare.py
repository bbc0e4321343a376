#!/usr/bin/env python3
"""Whether `vramlab compare` can be trusted: the suite compare-check, again and again. A block measures four stores in turn,
round by round, as scripts/side-by-side does: three of the same program (two comparisons, of neighbours; a regression is a
false alarm) and one whose steps were slowed down on purpose (it must be found). One round more has an allocation added,
which must be found with its category. The first store of a block is also compared with that of the block before, which
was measured minutes earlier.

Writes results/bench-compare.json: of every comparison what it said and the ratios it saw, and where it ran. Stores are
kept in --work; a run that was cut off goes on with them. About 40 minutes on two quiet cores."""
import argparse
import json
import os
import random
import subprocess
import sys
import time
from datetime import datetime, timezone

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLOWDOWN, ALLOCATION = "slowdown=0.05", "allocate=1MiB:activation"
SIDES = {"first": [], "second": [], "third": [], "slower": ["--inject", SLOWDOWN]}


def store_of(a, block, side):
    return os.path.join(a.work, f"{block}-{side}")


def measure(a, block, side, times, *more):
    subprocess.run([a.vramlab, "run", a.suite, "-q", "--resume", "-o", store_of(a, block, side), "--repeat", str(times), *more],
                   check=True, stdout=subprocess.DEVNULL)


def compare(base, new, a):
    done = subprocess.run([a.vramlab, "compare", base, new, "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    said = json.loads(done.stdout)
    differences = [d for cell in said["cells"] for d in cell["differences"]]
    differences += [said["summary"]["together"]] if "together" in said["summary"] else []
    assert (done.returncode == 1) == any(d["judgement"] == "regressed" for d in differences)
    times = [d for d in differences if d["metric"] == "step_s"]
    return {"regressed": done.returncode == 1, "ratios": [d["ratio"] for d in times], "p": [d["p"] for d in times],
            "evidence": [d["evidence"] for d in times],
            "regressed_metrics": sorted({d["metric"] for d in differences if d["judgement"] == "regressed"})}


def alarms(comparisons):
    return sum(c["regressed"] for c in comparisons)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", default="compare-check")
    p.add_argument("--blocks", type=int, default=10, help="each two comparisons of the same and one of each fault (%(default)s)")
    p.add_argument("--rounds", type=int, default=12, help="of a block (%(default)s)")
    p.add_argument("--work", default="compare-bench", help="where the stores are kept")
    p.add_argument("--vramlab", default=os.path.join(ROOT, "build", "cpu", "bin", "vramlab"))
    p.add_argument("--results", default=os.path.join(ROOT, "results"))
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    same, slower, larger, apart = [], [], [], []
    order, start = random.Random(0), time.monotonic()
    for block in range(a.blocks):
        for done in range(a.rounds):
            for side in order.sample(list(SIDES), len(SIDES)):
                measure(a, block, side, done + 1, *SIDES[side])
        measure(a, block, "larger", 1, "--inject", ALLOCATION)
        first, second, third, slow, large = (store_of(a, block, side) for side in (*SIDES, "larger"))
        same += [compare(first, second, a), compare(second, third, a)]
        slower.append(compare(first, slow, a))
        larger.append(compare(first, large, a))
        if block > 0:
            apart.append(compare(store_of(a, block - 1, "first"), first, a))
        print(f"{block + 1} of {a.blocks} blocks: {alarms(same)} false alarms in {len(same)} ({alarms(apart)} in {len(apart)} of "
              f"stores apart), {alarms(slower)} of {len(slower)} slowdowns found, {time.monotonic() - start:.0f} s", file=sys.stderr)
    with open(os.path.join(store_of(a, 0, "first"), "journal.jsonl"), encoding="utf-8") as journal:
        first = [json.loads(line) for line in journal][1]
    named = [f"peak_{ALLOCATION.rpartition(':')[2]}_bytes" in c["regressed_metrics"] for c in larger]
    result = {"benchmark": "compare", "suite": a.suite, "rounds": a.rounds, "same": same, "slowdown": SLOWDOWN, "slower": slower,
              "allocation": ALLOCATION, "larger": larger, "apart": apart, "false_alarms": alarms(same),
              "false_alarms_apart": alarms(apart), "slowdowns_found": sum("step_s" in c["regressed_metrics"] for c in slower),
              "allocations_named": sum(named), "created_utc": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "hardware": first["hardware"], "threads": first["threads"], "library": first["library"],
              "git_commit": first["git_commit"], "git_dirty": first["git_dirty"]}
    path = os.path.join(a.results, "bench-compare.json")
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1, allow_nan=False)
    os.replace(path + ".tmp", path)
    print(f"{result['false_alarms']} false alarms in {len(same)} comparisons side by side, {result['false_alarms_apart']} in "
          f"{len(apart)} of stores apart; {result['slowdowns_found']} of {len(slower)} slowdowns of 5 % found; "
          f"{result['allocations_named']} of {len(larger)} allocations of 1 MiB found with their category\nwritten {path}")
    return 20 * result["false_alarms"] > len(same) or result["slowdowns_found"] < 0.9 * len(slower) or not all(named)


if __name__ == "__main__":
    sys.exit(main())
