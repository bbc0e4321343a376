"""What a golden file keeps of a tensor, and how it is written.

Per tensor: its L2 norm, four sums under random signs, and 32 elements. Signs and places come from Philox
keyed by the tensor's name, so the C test draws the same; the sums see every element, the samples say where
a difference is. One tensor a line, so that a regenerated file can be read as a diff.
"""
import json

import numpy as np

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
