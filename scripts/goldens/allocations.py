#!/usr/bin/env python3
"""Golden counts of what eager PyTorch allocates in a training step of ResNet-50 at 224 x 224, of BERT-base at 128 tokens and
of the 3D U-Net at 64 x 64 x 64, and in a forward pass under no_grad of the first two: what the tensors of stack=pytorch are
held to. Writes tests/goldens/pytorch_allocations.json; scripts/peers/allocations.py counts, and
says what the figures mean. Left out are the blocks that the convolution library takes within one call, which are
this library's, not PyTorch's. --check counts anew and compares with the file instead; 77: no PyTorch here.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "peers"))
import allocations  # noqa: E402

KEPT = ["case", "batch", "amp", "infer", "base_bytes", "peak_above_start_without_library_bytes",
        "peak_total_without_library_bytes", "live_at_peak_without_library", "saved_for_backward_bytes",
        "parameter_gradient_bytes", "peak_above_start_bytes"]


def check(path, rows):
    """1 when a peak is more than 1 % from the golden one: what PyTorch's library leaves contiguous may differ a
    little between processors."""
    with open(path, encoding="utf-8") as golden:
        wanted = json.load(golden)["rows"]
    failed = 0
    for row, want in zip(rows, wanted, strict=True):
        got, golden_bytes = (r["peak_total_without_library_bytes"] for r in (row, want))
        off = got / golden_bytes - 1.0
        print(f"{row['case']}, batch {row['batch']} {row['amp'] or 'f32'}{' inference' if row['infer'] else ''}: {got} bytes, golden {golden_bytes}, {off:+.3%}")
        failed |= abs(off) > 0.01
    return int(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the golden file is, or goes")
    parser.add_argument("--check", action="store_true", help="compare with the file; 1 when a peak is 1 %% off")
    options = parser.parse_args()
    path = os.path.join(options.directory, "pytorch_allocations.json")
    forward = [("resnet50", 4), ("resnet50", 16), ("bert-base", 8)]
    trained = forward + [("unet3d", 1)]
    rows = [allocations.measure(allocations.options_of(["--case", case, "--batch", str(batch)] + amp + infer))
            for cells, infer in ((trained, []), (forward, ["--infer"])) for case, batch in cells
            for amp in ([], ["--amp", "bf16"])]
    if options.check:
        sys.exit(check(path, rows))
    with open(path, "w", encoding="utf-8") as out:
        head = {"torch": rows[0]["torch"].split("+")[0]}
        kept = ",\n".join(json.dumps({key: row[key] for key in KEPT}) for row in rows)
        out.write(json.dumps(head)[:-1] + ', "rows": [\n' + kept + "\n]}\n")
    for row in rows:
        print(f"{path}: {row['case']}, batch {row['batch']} {row['amp'] or 'f32'}: {row['peak_total_without_library_bytes']} bytes")


if __name__ == "__main__":
    main()
