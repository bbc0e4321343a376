"""What a tool sees of a run: a range for every segment of a step, in it one for every layer, in the order of the step, all
of them closed. While it watches, launches go one by one, updates too; else many updates are one launch. Losses are equal.

usage: test_nvtx.py VRAMLAB FOLDER_OF_THE_HOST_MODULES"""
import json
import os
import subprocess
import sys
import tempfile

BERT = ["--case", "bert-base", "--set", "layers=2", "--set", "sequence=16", "--set", "vocabulary=500", "--batch", "2"]
WARMUP, STEPS = 2, 2


def run(program, modules, *arguments, **environment):
    done = subprocess.run([program, "run", *BERT, "--device", "cuda", "--warmup", str(WARMUP), "--steps", str(STEPS), "--json",
                           *arguments], capture_output=True, text=True, timeout=110, check=False,
                          env={**os.environ, "VRAMLAB_MODULES": modules, **environment})
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "ok", record["error"]
    return record


def check_ranges(lines):
    assert lines[-1] == "0 end" and "-" not in lines, lines[-3:]
    ranges = [line.split(" ", 2) for line in lines[:-1]]
    assert all(domain == "vramlab" for _, domain, _ in ranges)
    segments = [name for depth, _, name in ranges if depth == "0"]
    assert segments == ["forward", "backward", "update"] * (WARMUP + STEPS), segments
    assert {depth for depth, _, _ in ranges} == {"0", "1"}
    layers = [name for _, _, name in ranges]
    for layer in ("layers.0", "layers.1"):
        assert sum(name.startswith(layer) for name in layers) >= 3 * (WARMUP + STEPS), layer
    first, second = (next(i for i, name in enumerate(layers) if name.startswith(layer)) for layer in ("layers.0", "layers.1"))
    assert first < second, "forward goes from the first layer to the last"


def main():
    program, modules = sys.argv[1:]
    plain = run(program, modules)
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "ranges")
        watched = run(program, modules, NVTX_INJECTION64_PATH=os.path.join(modules, "libvramlab_nvtx_host.so"),
                      VRAMLAB_HOST_NVTX=log)
        with open(log, encoding="utf-8") as file:
            check_ranges(file.read().splitlines())
    assert watched["losses"] == plain["losses"]
    assert plain["graph_share"] == 1 and watched["graph_share"] is None


if __name__ == "__main__":
    main()
