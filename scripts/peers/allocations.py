#!/usr/bin/env python3
"""Count what one training step (ResNet-50, BERT, 3D U-Net), or with --infer one forward pass, in eager PyTorch allocates on
the CPU, and what is live at its peak.

Prints one JSON object. All figures are bytes as requested from PyTorch's CPU allocator during one step after
warm-up (moments exist, gradients are None), from the profiler's allocation events: a running sum, so the
peak is exact and free of allocator rounding and of what libraries take elsewhere.

  base_bytes                 parameters, buffers, inputs and the optimizer's moments, each storage once
  peak_above_start_bytes     highest running sum within the step, including what the convolution library
                             allocates through PyTorch and frees again within one call
  peak_total_bytes           base_bytes + peak_above_start_bytes
  live_at_peak               that peak by category; sums to peak_above_start_bytes
  *_without_library          the same with the blocks left out that the convolution library (oneDNN inside
                             PyTorch) takes and gives back within one call, layout copies of operands and results
                             and scratchpads: the peak of the tensors that eager PyTorch itself makes
Exit code 77 when PyTorch is not installed.
"""
import argparse
import collections
import contextlib
import io
import json
import pathlib
import runpy
import sys
import time

try:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
except ImportError as missing:
    print(f"skipped: {missing}; scripts/peers/setup installs it", file=sys.stderr)
    sys.exit(77)


SIZES = {"resnet50": ["size"], "bert-base": ["sequence"], "bert-large": ["sequence"], "unet3d": ["size", "groups"]}
SIDES = {"resnet50": 224, "unet3d": 64}


def tensors_of(function):
    """What a function made inside another holds of that one's tensors."""
    return [cell.cell_contents for cell in function.__closure__ or () if torch.is_tensor(cell.cell_contents)]


class Step:
    """One training step of the workload scripts/peers/pytorch_step.py measures: that script, run for a step, leaves
    model, loss and optimizer."""

    def __init__(self, options):
        arguments = [options.case, str(options.batch), "--steps", "1", "--seq", str(options.sequence)]
        if "size" in SIZES[options.case]:
            arguments += ["--size", str(options.size)]
        if "groups" in SIZES[options.case]:
            arguments += ["--groups", str(options.groups)]
        arguments += ["--channels-last"] if options.channels_last else []
        arguments += ["--infer"] if options.infer else []
        arguments += ["--threads", str(options.threads)] if options.threads else []
        script = pathlib.Path(__file__).with_name("pytorch_step.py")
        before, sys.argv = sys.argv, [str(script)] + arguments
        with contextlib.redirect_stdout(io.StringIO()):
            made = runpy.run_path(str(script))
        sys.argv = before
        self.model, self.loss, self.optimizer = made["m"], made["loss_fn"], made["opt"]
        self.inputs = ([] if options.infer else tensors_of(made["loss_fn"])) + tensors_of(made["forward"])
        self.forward, self.infer = made["forward"], options.infer
        self.amp = options.amp

    def run(self, after_backward=lambda: None):
        if self.infer:
            with record_function("phase.forward"), torch.autocast("cpu", torch.bfloat16, enabled=self.amp == "bf16"):
                with torch.no_grad():
                    self.forward()
            return
        with record_function("phase.forward"):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.amp == "bf16"):
                loss = self.loss()
        with record_function("phase.backward"):
            loss.backward()
        after_backward()
        with record_function("phase.update"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def base(self):
        """Bytes that are there before the step, by kind, each storage once."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()
                    if torch.is_tensor(value)]
        kinds = {"parameters": list(self.model.parameters()), "buffers": list(self.model.buffers()),
                 "inputs": self.inputs, "moments": moments}
        sizes, seen = {}, set()
        for kind, tensors in kinds.items():
            sizes[kind] = 0
            for tensor in tensors:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in seen:
                    seen.add(storage.data_ptr())
                    sizes[kind] += storage.nbytes()
        return sizes


class Block:
    """One allocation: where it came from, and when it lived."""

    def __init__(self, address, size, born, operators):
        self.address, self.size, self.born, self.died = address, size, born, None
        self.operators = operators  # innermost first
        self.saved = self.gradient = False

    def phase(self):
        return next((name[6:] for name in self.operators if name.startswith("phase.")), "elsewhere")

    def operator(self):
        """The innermost operator that means something to a reader."""
        plumbing = ("aten::empty", "aten::resize", "aten::to", "aten::_to_copy", "aten::copy_", "phase.")
        names = [name for name in self.operators if not name.startswith(plumbing)]
        return names[0] if names else self.operators[0] if self.operators else "none"

    def of_library(self):
        """Taken by the convolution library itself: tensors come from aten::empty and its like instead."""
        return self.operators[:1] and self.operators[0] in ("aten::mkldnn_convolution",
                                                            "aten::convolution_backward")


def allocations(prof):
    """(time, signed size, Block) for every allocation and release, in order of time."""
    raw = []

    def visit(event, operators):
        kind = str(event.tag).rsplit(".", 1)[-1]
        if kind == "Allocation":
            fields = event.extra_fields
            raw.append((event.start_time_ns, len(raw), fields.alloc_size, fields.ptr, operators))
        inner = (event.name,) + operators if kind == "TorchOp" else operators
        for child in event.children:
            visit(child, inner)

    for root in prof.profiler.kineto_results.experimental_event_tree():
        visit(root, ())
    raw.sort(key=lambda row: row[:2])
    live, rows, blocks = {}, [], []
    for when, _, size, address, operators in raw:
        if size > 0:
            block = Block(address, size, when, operators)
            live[address] = block
            blocks.append(block)
            rows.append((when, size, block))
        elif address in live:  # what was allocated before the step and freed in it changes nothing above start
            block = live.pop(address)
            block.died = when
            rows.append((when, -block.size, block))
    return rows, blocks


def category(block):
    if block.gradient:
        return "parameter gradients"
    if block.of_library():
        return "convolution library, within one call"
    if block.saved:
        return "saved for backward"
    return f"{block.phase()}: not saved"


def peak(rows, keep):
    """The highest running sum over the blocks that keep() accepts, its time, and what was live then."""
    total, best, when, live, at_peak = 0, 0, 0, {}, []
    for time_ns, size, block in rows:
        if not keep(block):
            continue
        total += size
        if size > 0:
            live[id(block)] = block
        else:
            live.pop(id(block), None)
        if total > best:
            best, when, at_peak = total, time_ns, list(live.values())
    return best, when, at_peak


def explain(at_peak):
    by_category, by_operator = collections.Counter(), collections.Counter()
    for block in at_peak:
        by_category[category(block)] += block.size
        by_operator[f"{category(block)} | {block.operator()}"] += block.size
    return dict(by_category.most_common()), dict(by_operator.most_common(24))


def measure(options):
    step = Step(options)
    for _ in range(2):
        step.run()
    base = step.base()
    saved, gradients = [], {}

    def pack(tensor):
        saved.append((tensor.untyped_storage().data_ptr(), time.time_ns()))
        return tensor

    def note_gradients():
        now = time.time_ns()
        for name, parameter in step.model.named_parameters():
            if parameter.grad is None:
                continue
            gradients[parameter.grad.untyped_storage().data_ptr()] = (name, now)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as prof:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step.run(note_gradients)
    rows, blocks = allocations(prof)
    by_address = collections.defaultdict(list)
    for block in blocks:
        by_address[block.address].append(block)

    def alive(address, when):
        return next((b for b in by_address[address] if b.born <= when and (b.died is None or b.died >= when)),
                    None)

    for address, when in saved:
        block = alive(address, when)
        if block:
            block.saved = True
    for address, (_, when) in gradients.items():
        block = alive(address, when)
        if block:
            block.gradient = True
    total, when, at_peak = peak(rows, lambda block: True)
    own, own_when, own_at_peak = peak(rows, lambda block: not block.of_library())
    start = rows[0][0]
    categories, operators = explain(at_peak)
    own_categories, own_operators = explain(own_at_peak)
    newest = max(own_at_peak, key=lambda block: block.born)
    return {
        "case": options.case, "batch": options.batch, **{key: getattr(options, key) for key in SIZES[options.case]},
        "amp": options.amp, "infer": options.infer, "channels_last": options.channels_last,
        "torch": torch.__version__, "threads": torch.get_num_threads(),
        "base_bytes": sum(base.values()), "base": base,
        "peak_above_start_bytes": total, "peak_total_bytes": sum(base.values()) + total,
        "peak_phase": max(at_peak, key=lambda block: block.born).phase(),
        "peak_operator": max(at_peak, key=lambda block: block.born).operator(),
        "live_at_peak": categories, "live_at_peak_by_operator": operators,
        "peak_above_start_without_library_bytes": own,
        "peak_total_without_library_bytes": sum(base.values()) + own,
        "peak_without_library_phase": newest.phase(), "peak_without_library_operator": newest.operator(),
        "live_at_peak_without_library": own_categories,
        "live_at_peak_without_library_by_operator": own_operators,
        "saved_for_backward_bytes": sum(block.size for block in blocks if block.saved),
        "parameter_gradient_bytes": sum(block.size for block in blocks if block.gradient),
        "peak_after_start_s": (when - start) / 1e9, "peak_without_library_after_start_s": (own_when - start) / 1e9,
        "events": len(rows),
    }


def options_of(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--case", choices=sorted(SIZES), default="resnet50")
    parser.add_argument("--size", type=int, help="side of an image (224) or a volume (64)")
    parser.add_argument("--groups", type=int, default=1, help="of the U-Net's 3x3x3 convolutions")
    parser.add_argument("--sequence", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--amp", choices=["bf16"], default=None)
    parser.add_argument("--infer", action="store_true", help="a forward pass of the evaluated model under no_grad")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="0: all")
    options = parser.parse_args(arguments)
    options.size = options.size or SIDES.get(options.case)
    return options


def main():
    options = options_of()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(json.dumps(measure(options), indent=1))


if __name__ == "__main__":
    main()
