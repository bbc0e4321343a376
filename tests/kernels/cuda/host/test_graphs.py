"""Whether steps ran as CUDA graphs is told: all of them where nothing hinders it, none, with the same losses and the
reason, where a capture fails, and nothing is claimed where launches go one by one or the device has no graphs.

usage: test_graphs.py VRAMLAB FOLDER_OF_THE_HOST_MODULES"""
import json
import os
import subprocess
import sys

BERT = ["--case", "bert-base", "--set", "layers=1", "--set", "sequence=16", "--set", "vocabulary=500", "--batch", "2",
        "--warmup", "2", "--steps", "2", "--json"]


def run(program, modules, device, recipe, card):
    done = subprocess.run([program, "run", *BERT, "--device", device, "--recipe", recipe], capture_output=True, text=True,
                          timeout=110, check=False, env={**os.environ, "VRAMLAB_MODULES": modules, "VRAMLAB_HOST_CARD": card})
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "ok", record["error"]
    return record


def main():
    program, modules = sys.argv[1:]
    captured = run(program, modules, "cuda", "stack=vramlab", "captures=1")
    assert captured["graph_share"] == 1 and captured["graph_refusal"] is None
    refused = run(program, modules, "cuda", "stack=vramlab", "captures=0")
    assert refused["graph_share"] == 0 and "Capture" in refused["graph_refusal"], refused["graph_refusal"]
    assert refused["losses"] == captured["losses"]
    for device, recipe, reason in [("cuda", "offload=activations", "one by one"), ("cpu", "baseline", "cuda only")]:
        record = run(program, modules, device, recipe, "captures=1")
        assert record["graph_share"] is None and reason in record["null_reasons"]["graph_share"]


if __name__ == "__main__":
    main()
