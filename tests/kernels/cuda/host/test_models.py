"""Whole training steps of small models by the cuda backend on the host machine, beside the cpu device: the same losses
under every kind of recipe. Steps are captured as graphs from the third on where nothing moves between tiers: BERT runs
four; convolutions, which take the host long, two. What both run in fp32 differs by the order of sums; what they run in 16 bits by single roundings.

usage: test_models.py VRAMLAB FOLDER_OF_THE_HOST_MODULES [NAME]"""
import json
import os
import subprocess
import sys

BERT = ["--case", "bert-base", "--set", "layers=2", "--set", "sequence=16", "--set", "vocabulary=500", "--batch", "2"]
RESNET = ["--case", "resnet50", "--set", "size=64", "--set", "classes=10", "--set", "smooth=1", "--batch", "4"]
UNET = ["--case", "unet3d", "--set", "depth=32", "--set", "height=16", "--set", "width=16", "--batch", "1"]
FP32, LOW = 2e-5, 2e-2
RUNS = {
    "bert": (BERT, "baseline", FP32),
    "bert_materialised": (BERT, "stack=vramlab attention=materialised", FP32),
    "bert_bf16": (BERT, "stack=vramlab amp=bf16 update=in-backward", LOW),
    "bert_fp16": (BERT, "amp=fp16", LOW),
    "bert_checkpoint": (BERT, "checkpoint=1", FP32),
    "bert_accumulate": (BERT, "stack=vramlab accumulate=2", FP32),
    "bert_offload": (BERT, "offload=activations", FP32),
    "bert_8bit": (BERT, "optimizer-state=8bit", FP32),
    "bert_expandable": (BERT, "allocator=expandable:remap=always defragment=every-step", FP32),
    "bert_async": (BERT, "allocator=async", FP32),
    "bert_async_offload": (BERT, "allocator=async offload=activations", FP32),
    "resnet": (RESNET, "stack=vramlab recompute=norm update=in-backward", FP32),
    "resnet_bf16": (RESNET, "amp=bf16", LOW),
    "unet": (UNET, "stack=vramlab recompute=norm", FP32),
    "unet_groups": (UNET, "stack=vramlab amp=bf16 groups=4", LOW),
}
INFERENCE = {"resnet_infer": (RESNET, "stack=vramlab", FP32), "unet_infer": (UNET, "stack=vramlab", FP32)}


def run(program, modules, device, arguments, recipe):
    done = subprocess.run(
        [program, "run", *arguments, "--device", device, "--recipe", recipe, "--warmup", "1", "--json"],
        capture_output=True, text=True, timeout=280, check=False, env={**os.environ, "VRAMLAB_MODULES": modules})
    if not done.stdout:
        raise SystemExit(f"{device} {recipe}: {done.stderr}")
    return json.loads(done.stdout)


def on_cpu(recipe):
    """Pools are a card's; results do not depend on the allocator."""
    return recipe.replace("allocator=async", "allocator=caching")


def values_of(record):
    return record["losses"] or record["output_sketch"]


def main():
    program, modules, *names = sys.argv[1:]
    runs = {**{name: (*what, ["--steps", "3" if name.startswith("bert") else "1"]) for name, what in RUNS.items()},
            **{name: (*what, ["--infer", "--steps", "3"]) for name, what in INFERENCE.items()}}
    failed = 0
    for name in names or runs:
        arguments, recipe, tolerance, mode = runs[name]
        cpu, cuda = (run(program, modules, device, arguments + mode, on_cpu(recipe) if device == "cpu" else recipe)
                     for device in ("cpu", "cuda"))
        assert (cpu["status"], cuda["status"]) == ("ok", "ok"), f"{name}: {cpu.get('error')} {cuda.get('error')}"
        pairs = list(zip(values_of(cpu), values_of(cuda), strict=True))
        scale = max(abs(value) for value, _ in pairs)
        worst = max(abs(a - b) for a, b in pairs) / scale
        assert cuda.get("step_s") is None, "the host machine's time is nobody's"
        verdict = "ok" if worst <= tolerance and scale > 0 else "WRONG"
        failed += verdict != "ok"
        print(f"{name}: {len(pairs)} values within {worst:.1e} of {scale:.4g} (at most {tolerance:g}): {verdict}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
