#!/usr/bin/env python3
"""Golden values of AdamW from PyTorch: in float64, and in float32 by the fused kernel.

Writes tests/goldens/adamw.json. Per setting: weight, exp_avg and exp_avg_sq after some steps. The weight
(SIZE elements, named "weight") and the gradient of each step (the input "x") are drawn from Philox by name, as
the engine draws them, and rounded once to float32; nothing is stored of them.
"""
import argparse
import json
import math
import os

import numpy as np
import torch

import philox

SEED, SIZE, BOUND = 5, 37, 0.5
STEPS = [1, 2, 10]  # after which values are kept
SETTINGS = [
    {},  # PyTorch's defaults
    {"lr": 0.1, "betas": (0.5, 0.75), "eps": 1e-3, "weight_decay": 0.25},
    {"lr": 1e-4, "weight_decay": 0.0},
]


def trajectory(settings, dtype, fused):
    """[{name: values}] after each of STEPS, as doubles."""
    drawn = philox.uniform(philox.key(SEED, 0, "weight"), 0, SIZE, BOUND)
    weight = torch.nn.Parameter(torch.from_numpy(drawn).to(dtype))
    optimizer = torch.optim.AdamW([weight], fused=fused, **settings)
    kept = []
    for step in range(max(STEPS)):
        gradient = philox.uniform(philox.key(SEED, step, "x"), 0, SIZE, math.sqrt(3.0))
        weight.grad = torch.from_numpy(gradient).to(dtype)
        optimizer.step()
        if step + 1 in STEPS:
            state = optimizer.state[weight]
            kept.append({"weight": weight.detach(), "weight.exp_avg": state["exp_avg"],
                         "weight.exp_avg_sq": state["exp_avg_sq"]})
            kept[-1] = {name: value.double().numpy().tolist() for name, value in kept[-1].items()}
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the golden file goes")
    directory = parser.parse_args().directory
    philox.check()
    lines = []
    for settings in SETTINGS:
        defaults = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], **settings).defaults
        head = {"learning_rate": defaults["lr"], "beta1": defaults["betas"][0], "beta2": defaults["betas"][1],
                "epsilon": defaults["eps"], "weight_decay": defaults["weight_decay"]}
        exact, fused = trajectory(settings, torch.float64, False), trajectory(settings, torch.float32, True)
        for index, step in enumerate(STEPS):
            # Nine digits give a float32 again; PyTorch's float64 is compared within float32's rounding.
            values = {name: {"f64": [float(f"{x:.12g}") for x in exact[index][name]],
                             "fused_f32": [float(f"{x:.9g}") for x in fused[index][name]]} for name in exact[index]}
            lines.append(json.dumps({**head, "steps": step, "values": values}))
    path = os.path.join(directory, "adamw.json")
    with open(path, "w", encoding="utf-8") as out:
        head = {"torch": torch.__version__.split("+")[0], "seed": SEED, "size": SIZE, "bound": BOUND}
        out.write("{\n" + "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items()))
        out.write('"cases": [\n' + ",\n".join(lines) + "\n]\n}\n")
    print(f"{path}: {len(lines)} cases, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
