"""How a golden file is made from a PyTorch model, what it keeps of a tensor, and how it is written.

Per tensor: its L2 norm, four sums under random signs, and 32 elements. Signs and places come from Philox
keyed by the tensor's name, so the C test draws the same; the sums see every element, the samples say where
a difference is. One tensor a line, so that a regenerated file can be read as a diff.
"""
import copy
import json
import os

import numpy as np
import torch

import philox

SEED = 20260131  # of signs and places only; never of weights or inputs
SIGNS, SAMPLES = 4, 32


def summary(name, values):
    """norm, sums and samples of an array of doubles, flattened in logical order."""
    flat = np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
    words = philox.words(philox.key(SEED, 0, f"{name}:signs"), 0, flat.size)
    sums = [float(np.sum(np.where((words >> np.uint32(k)) & np.uint32(1), flat, -flat))) for k in range(SIGNS)]
    places = np.floor(philox.units(philox.key(SEED, 0, f"{name}:places"), 0, SAMPLES) * flat.size).astype(int)
    return {"name": name, "elements": int(flat.size), "norm": float(np.sqrt(np.sum(flat * flat))), "sums": sums,
            "places": places.tolist(), "values": [float(v) for v in flat[places]]}


def write(path, head, tensors):
    with open(path, "w", encoding="utf-8") as out:
        out.write("{\n")
        for name, value in head.items():
            out.write(f"{json.dumps(name)}: {json.dumps(value)},\n")
        out.write('"tensors": [\n')
        out.write(",\n".join(json.dumps(tensor) for tensor in tensors))
        out.write("\n]\n}\n")


def one_step(initial, backward, dtype, autocast=False):
    """(loss, gradients, statistics) of step 0, as doubles by name."""
    model = copy.deepcopy(initial).to(dtype)
    loss = backward(model, 0, dtype, autocast)
    gradients = {name: p.grad.double().numpy() for name, p in model.named_parameters()}
    statistics = {name: b.double().numpy() for name, b in model.named_buffers() if "running" in name}
    return loss, gradients, statistics


def trajectory(initial, backward, optimizer_of, steps, dtype, autocast=False):
    model = copy.deepcopy(initial).to(dtype)
    optimizer = optimizer_of(model.parameters())
    losses = []
    for step in range(steps):
        losses.append(backward(model, step, dtype, autocast))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def relative(got, true):
    """L2 distance over the true norm, to four digits: enough to print beside ours."""
    return float(f"{np.linalg.norm(got - true) / max(np.linalg.norm(true), 1e-300):.4g}")


def make(path, head, initial, backward, optimizer_of, steps):
    """Writes the golden file of a float32 model: one step in float64, what PyTorch's own float32 and bf16 autocast
    differ by from it, and the losses of some steps. backward(model, step, dtype, autocast) returns the loss."""
    loss, gradients, statistics = one_step(initial, backward, torch.float64)
    f32 = one_step(initial, backward, torch.float32)
    bf16 = one_step(initial, backward, torch.float32, autocast=True)
    losses = {"": trajectory(initial, backward, optimizer_of, steps, torch.float64),
              "pytorch_f32_": trajectory(initial, backward, optimizer_of, steps, torch.float32),
              "pytorch_bf16_": trajectory(initial, backward, optimizer_of, steps, torch.float32, autocast=True)}
    tensors = []
    for kind, place, values in (("gradient", 1, gradients), ("statistic", 2, statistics)):
        for tensor, value in values.items():
            tensors.append({"kind": kind, **summary(tensor, value),
                            "pytorch_f32_error": relative(f32[place][tensor], value),
                            "pytorch_bf16_error": relative(bf16[place][tensor], value)})
    head = {**head, "golden_seed": SEED, "torch": torch.__version__.split("+")[0], "loss": loss,
            "pytorch_f32_loss_error": float(f"{abs(f32[0] - loss):.4g}"),
            "pytorch_bf16_loss_error": float(f"{abs(bf16[0] - loss):.4g}"),
            **{f"{prefix}losses": values for prefix, values in losses.items()}}
    write(path, head, tensors)
    print(f"{path}: loss {loss:.12f}, {len(tensors)} tensors, {os.path.getsize(path)} bytes")
