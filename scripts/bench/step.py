#!/usr/bin/env python3
"""A training step, or with --infer a forward pass, vramlab against PyTorch: same work, same sitting, interleaved.

Speed is compared with the fastest PyTorch configuration of {eager, compile} x {malloc default, keep, huge}, for
convolution nets with and without channels-last; memory with the leanest. A scouting round finds them, then pairs of runs alternate; the median of
the pair ratios counts with its order-statistic interval of at least 95 %. One recipe of ours serves both, and its first losses
(in inference: a sketch of its outputs) are compared with the baseline recipe's (same weights, same data).

Writes results/bench-<case>[-groups4][-infer]-<precision>.json (raw samples, provenance) and, with --store, adds every run to a
store.
Set up the peer once with scripts/peers/setup; build first.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from datetime import datetime, timezone

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEER = os.path.join(ROOT, "scripts", "peers", "pytorch_step.py")
RECIPES = {"resnet50": {"fp32": "stack=vramlab recompute=norm update=in-backward",
                        "bf16": "stack=vramlab amp=bf16 recompute=norm update=in-backward"},
           "bert-base": {"fp32": "stack=vramlab recompute=norm update=in-backward",
                         "bf16": "stack=vramlab amp=bf16 update=in-backward"},
           "unet3d": {"fp32": "stack=vramlab recompute=norm update=in-backward",
                      "bf16": "stack=vramlab amp=bf16 update=in-backward"}}
INFERENCE = {"fp32": "stack=vramlab", "bf16": "stack=vramlab amp=bf16 weights=once"}
BATCHES = {"resnet50": 16, "bert-base": 8, "unet3d": 2}
CONVOLUTIONS = ("resnet50", "unet3d")  # nets that PyTorch runs in channels-last too
# Relative: of losses over the first steps, by rounding of fp32 and of bf16; of outputs, 2^-8 times the root of some fifty
# layers that each round once in bf16.
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
OUTPUT_TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--case", choices=list(RECIPES), default="resnet50")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--infer", action="store_true", help="forward passes instead of training steps")
    p.add_argument("--batch", type=int, help="default: 16 for resnet50, 8 for bert-base, 2 for unet3d")
    p.add_argument("--groups", type=int, default=1, help="of unet3d's convolutions")
    p.add_argument("--sequence", type=int, default=128, help="tokens of a sequence, for bert-base")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--pairs", type=int, default=15)
    p.add_argument("--recipe", help="ours; default: the recipe this benchmark is about")
    p.add_argument("--vramlab", default=os.path.join(ROOT, "build", "cpu", "bin", "vramlab"))
    p.add_argument("--python", default=os.path.join(ROOT, ".peer", "bin", "python"))
    p.add_argument("--results", default=os.path.join(ROOT, "results"))
    p.add_argument("--store", help="a store directory that every run is added to")
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out of the scouting round")
    a = p.parse_args()
    a.batch = a.batch or BATCHES[a.case]
    a.settings = ["--set", f"sequence={a.sequence}"] if a.case == "bert-base" else []
    if a.groups > 1:
        a.settings += ["--set", f"groups={a.groups}"]
    return a


def recipe_of(a):
    return a.recipe or (INFERENCE if a.infer else RECIPES[a.case])[a.precision]


def run_json(command, threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def ours(a, recipe, steps):
    return run_json([a.vramlab, "run", "--case", a.case, *a.settings, "--batch", str(a.batch), "--device", "cpu", "--threads",
                     str(a.threads), "--steps", str(steps), "--recipe", recipe, "--json"] + (["--infer"] if a.infer else []), a.threads)


def peer_flags(a):
    """The configurations of the scouting round, as argument lists of the peer."""
    for compiled in ([False] if a.no_compile else [False, True]):
        for channels_last in ((False, True) if a.case in CONVOLUTIONS else (False,)):
            for malloc in ("default", "keep", "huge"):
                yield ((["--compile"] if compiled else []) + (["--channels-last"] if channels_last else []) +
                       ["--malloc", malloc])


def peer(a, flags, steps):
    command = [a.python, PEER, a.case, str(a.batch), "--threads", str(a.threads), "--steps", str(steps)]
    if a.case == "bert-base":
        command += ["--seq", str(a.sequence)]
    if a.groups > 1:
        command += ["--groups", str(a.groups)]
    if a.infer:
        command += ["--infer"]
    if a.precision == "bf16":
        command += ["--amp", "bf16"]
    return run_json(command + flags, a.threads)


def interval(values, wanted=0.95):
    """Median and the narrowest symmetric order-statistic interval that covers it with at least `wanted`, where so many
    values allow one; else the widest. With its true coverage (of the median of a continuous distribution)."""
    ordered, n = sorted(values), len(values)

    def coverage(rank):
        return 1.0 - 2.0 * sum(math.comb(n, k) for k in range(rank + 1)) / 2.0 ** n
    rank = max([r for r in range(n // 2) if coverage(r) >= wanted], default=0)
    return dict(median=statistics.median(ordered), low=ordered[rank], high=ordered[n - 1 - rank],
                coverage=coverage(rank), samples=values)


def peer_step_bytes(record):
    return record["peak_rss_bytes"] - record["base_rss_bytes"]


def scout(a):
    """Every configuration once, then those within 15 % of the best twice more: one run on a shared machine does not say
    which is fastest. (runs, fastest, leanest); the fastest has the highest median."""
    runs = {}

    def run(flags):
        record = peer(a, flags, 3)
        runs.setdefault(tuple(flags), []).append(record)
        print(f"  torch {' '.join(flags):44s} {record['samples_per_s']:7.3f} samples/s  "
              f"step memory  {peer_step_bytes(record) / 2**30:6.3f} GiB", file=sys.stderr, flush=True)

    def speed(flags):
        return statistics.median(record["samples_per_s"] for record in runs[flags])
    for flags in peer_flags(a):
        run(flags)
    best = max(speed(flags) for flags in runs)
    finalists = [flags for flags in runs if speed(flags) >= 0.85 * best]
    for _ in range(2):
        for flags in finalists:
            run(list(flags))
    fastest = max(finalists, key=speed)
    leanest = min(runs, key=lambda flags: peer_step_bytes(runs[flags][0]))
    return runs, list(fastest), list(leanest)


def same_outputs(a, recipe):
    """The equality gate of inference: the distance of two sketches over the norm of one estimates the relative error of
    the outputs, to about a quarter (engine.h, StepMonitor)."""
    baseline = "amp=bf16" if a.precision == "bf16" else "baseline"
    reference, tried = ours(a, baseline, 1)["output_sketch"], ours(a, recipe, 1)["output_sketch"]
    error = math.dist(tried, reference) / math.hypot(*reference)
    tolerance = OUTPUT_TOLERANCE[a.precision]
    return dict(baseline=baseline, output_sketch=tried, baseline_output_sketch=reference, worst_relative=error,
                tolerance=tolerance, equal=bool(error <= tolerance))


def same_losses(a, recipe):
    """The equality gate: our recipe against our baseline of the same precision, first losses."""
    baseline = "amp=bf16" if a.precision == "bf16" else "baseline"
    reference, tried = ours(a, baseline, 2)["losses"], ours(a, recipe, 2)["losses"]
    worst = max(abs(x - y) / abs(y) for x, y in zip(tried, reference))
    return dict(baseline=baseline, losses=tried, baseline_losses=reference, worst_relative=worst,
                tolerance=LOSS_TOLERANCE[a.precision], equal=bool(worst <= LOSS_TOLERANCE[a.precision]))


def add_to_store(a, result):
    """Every run as a record of the store, the peer's with engine=torch."""
    for repeat, pair in enumerate(result["pairs"]):
        for record in (pair["vramlab"], pair["torch"]):
            subprocess.run([a.vramlab, "import", "--store", a.store, "--repeat", str(repeat)], input=json.dumps(record),
                           text=True, check=True)


def main():
    a = parse()
    recipe = recipe_of(a)
    if not os.path.exists(a.python):
        print(f"no peer at {a.python}: run scripts/peers/setup first", file=sys.stderr)
        return 3
    print(f"{a.case} {'inference' if a.infer else 'training'}, batch {a.batch}, {a.precision}, {a.threads} threads; "
          f"our recipe: {recipe}", file=sys.stderr)
    gate = same_outputs(a, recipe) if a.infer else same_losses(a, recipe)
    runs, fastest, leanest = scout(a)
    pairs = []
    for i in range(a.pairs):
        ours_record, peer_record = ours(a, recipe, a.steps), peer(a, fastest, a.steps)
        pair = dict(vramlab=ours_record, torch=peer_record)
        if i < 3:  # bytes hardly differ from run to run
            pair["torch_leanest"] = peer_record if leanest == fastest else peer(a, leanest, 2)
        pairs.append(pair)
        print(f"  pair {i + 1}: vramlab {ours_record['samples_per_s']:.3f}, torch {peer_record['samples_per_s']:.3f} "
              f"samples/s", file=sys.stderr, flush=True)
    speed = interval([p["vramlab"]["samples_per_s"] / p["torch"]["samples_per_s"] for p in pairs])
    memory = interval([p["vramlab"]["peak_step_bytes"] / peer_step_bytes(p["torch_leanest"])
                       for p in pairs if "torch_leanest" in p])
    result = dict(benchmark=a.case, inference=a.infer, settings=a.settings[1::2], precision=a.precision, batch=a.batch, threads=a.threads, recipe=recipe,
                  created_utc=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                  fastest_peer=fastest, leanest_peer=leanest, gate=gate, speed_ratio=speed, memory_ratio=memory,
                  scouting=[dict(flags=list(f), record=r) for f, records in runs.items() for r in records], pairs=pairs)
    os.makedirs(a.results, exist_ok=True)
    path = os.path.join(a.results, f"bench-{a.case}{'' if a.sequence == 128 else f'-{a.sequence}'}"
                        f"{f'-groups{a.groups}' if a.groups > 1 else ''}{'-infer' if a.infer else ''}-{a.precision}.json")
    with open(path + ".tmp", "w") as f:
        json.dump(result, f, indent=1, allow_nan=False)
    os.replace(path + ".tmp", path)
    if a.store:
        add_to_store(a, result)
    print(f"fastest peer   torch {' '.join(fastest)}\nleanest peer   torch {' '.join(leanest)}\n"
          f"recipe         {recipe} ({'outputs' if a.infer else 'losses'} equal to {gate['baseline']} within {gate['worst_relative']:.1e}: "
          f"{'yes' if gate['equal'] else 'NO'})\n"
          f"speed ratio    {speed['median']:.3f} [{speed['low']:.3f}, {speed['high']:.3f}] "
          f"({100 * speed['coverage']:.1f} % interval, {a.pairs} pairs)\n"
          f"memory ratio   {memory['median']:.3f} [{memory['low']:.3f}, {memory['high']:.3f}]\nwritten        {path}")
    return 0 if gate["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
