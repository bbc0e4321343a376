#!/usr/bin/env python3
"""Turns a memory snapshot of PyTorch into a trace for `vramlab replay`.

In the job:
    torch.cuda.memory._record_memory_history(max_entries=1000000)
    ...                                                 # a few steps, or until it runs out of memory
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
then:
    pytorch_snapshot.py snapshot.pickle trace.jsonl
    vramlab replay trace.jsonl

Reads what PyTorch 1.13 and later write. The pickle may hold numbers, texts, lists, dictionaries and the like only;
anything that would run code is refused. Needs nothing but Python.

Blocks that were in use before the first event are put at the head of the trace: those still there at the end are in
the snapshot's segments, those freed meanwhile are known by their free. A step ends where torch.profiler marks one
(ProfilerStep#) or an optimizer's step ends, in snapshots that have such annotations.
"""

import argparse
import bisect
import json
import os
import pickle
import resource
import sys

LARGEST_BLOCK_BYTES = 1 << 40
LARGEST_ADDRESS = 1 << 62
LARGEST_RESERVED_BYTES = 1 << 50
MOST_STREAMS = 65536
IN_USE = ("active_allocated", "active_pending_free", "active_awaiting_free")
CATEGORIES = {
    "parameter": "parameter", "gradient": "gradient", "optimizer_state": "optimizer", "activation": "activation",
    "input": "input", "temporary": "workspace", "autograd_detail": "activation",
    # of snapshots that vramlab exported
    "optimizer": "optimizer", "workspace": "workspace", "communication": "communication"}
# What the events of each action must have, and those that carry nothing for a trace.
ACTIONS = {
    "alloc": ("addr", "size"), "free_requested": ("addr", "size"), "free_completed": ("addr", "size"),
    "segment_alloc": ("addr", "size"), "segment_free": ("addr", "size"), "segment_map": ("addr", "size"),
    "segment_unmap": ("addr", "size"), "oom": ("size", ), "snapshot": (), "annotate": ()}
GROWTH = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Problem(Exception):
    """What is wrong with the input, in words for whoever gave it."""


class PlainUnpickler(pickle.Unpickler):
    """Builds objects of built-in types; a pickle that names anything else is refused before it is looked up."""

    def find_class(self, module, name):
        raise Problem(f"asks for {module}.{name}; accepted: built-in types only (numbers, texts, lists, dictionaries)")


def load(path):
    size = os.path.getsize(path)
    # A few bytes of a pickle can ask for any amount of memory: it gets a multiple of the file's size.
    limit = (1 << 30) + 64 * size
    before = resource.getrlimit(resource.RLIMIT_AS)
    allowed = [bound for bound in (limit, *before) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(allowed), before[1]))
    try:
        with open(path, "rb") as file:
            return PlainUnpickler(file).load()
    except MemoryError:
        raise Problem(f"would take more than {limit} bytes of memory: not a snapshot") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError,
            OverflowError, ImportError, RecursionError) as error:
        raise Problem(f"not a whole pickle: {error}") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# ---- Reading what is there -----------------------------------------------------------------------------------------


def clean(text, most=200):
    """What can be a text of a trace: what is not becomes a question mark."""
    return text[:most].encode("utf-8", "replace").decode().replace("\0", "?")


def shown(value):
    """A value in a message, short whatever it is."""
    if isinstance(value, str):
        return repr(clean(value, 40))
    if isinstance(value, int):
        return str(value) if value.bit_length() < 200 else f"a number of {value.bit_length()} bits"
    return f"a {type(value).__name__}"


def get(where, holder, key, kind, default=None):
    """holder[key], which must be of a kind; the default (if any) where it is missing."""
    if key not in holder and default is not None:
        return default
    if key not in holder:
        raise Problem(f"{where} has no \"{key}\"")
    value = holder[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Problem(f"{where}[\"{key}\"] is {shown(value)}; accepted: {kind.__name__}")
    return value


def get_bytes(where, holder, key, low=0):
    value = get(where, holder, key, int)
    if not low <= value <= LARGEST_BLOCK_BYTES:
        raise Problem(f"{where}[\"{key}\"] is {shown(value)}; accepted: {low} to {LARGEST_BLOCK_BYTES}")
    return value


def get_address(where, holder, key):
    value = get(where, holder, key, int)
    if not 0 <= value <= LARGEST_ADDRESS:
        raise Problem(f"{where}[\"{key}\"] is {shown(value)}; accepted: 0 to {LARGEST_ADDRESS}")
    return value


def each(where, items):
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise Problem(f"{where}[{i}] is no dictionary")
        yield f"{where}[{i}]", item


def frame_texts(holder):
    """The function and place that asked: the innermost outside of PyTorch."""
    frames = holder.get("frames")
    frames = [f for f in frames if isinstance(f, dict)] if isinstance(frames, list) else []
    outside = [f for f in frames if str(f.get("filename", "")).endswith(".py") and "/torch/" not in str(f["filename"])]
    for frame in (outside or frames)[:1]:
        file = os.path.basename(str(frame.get("filename", "")))
        line = frame.get("line")
        return {"name": clean(str(frame.get("name", ""))), "scope": clean(f"{file}:{shown(line)}")}
    return {}


class Streams:
    """Numbers from 0 for streams and, apart, the private pools of CUDA graphs: blocks of two are never exchanged."""

    def __init__(self):
        self.numbers = {}

    def of(self, where, holder, pool_key):
        stream = get(where, holder, "stream", int, default=0)
        pool = holder.get(pool_key)
        pool = pool if isinstance(pool, (tuple, list)) and any(pool) else ()
        number = self.numbers.setdefault((stream, tuple(map(str, pool))), len(self.numbers))
        if number >= MOST_STREAMS:
            raise Problem(f"more than {MOST_STREAMS} streams")
        return number


def request(where, holder, size, stream):
    """What a trace says of an obtain, less its address."""
    category = holder.get("category")
    texts = frame_texts(holder)
    label = holder.get("user_metadata")
    if isinstance(label, str) and label:
        texts["name"] = clean(label)
    made = {"bytes": size, **({"stream": stream} if stream else {}), **texts}
    if isinstance(category, str) and category.lower() in CATEGORIES:
        made["category"] = CATEGORIES[category.lower()]
    return made


def segment_blocks(segments, device, streams):
    """Blocks in use when the snapshot was taken, by address, and the bytes of all segments."""
    blocks, reserved = {}, 0
    for where, segment in each("segments", segments):
        if get(where, segment, "device", int, default=0) != device:
            continue
        reserved += get_bytes(where, segment, "total_size")
        address = get_address(where, segment, "address")
        stream = streams.of(where, segment, "segment_pool_id")
        for place, block in each(f"{where}[\"blocks\"]", get(where, segment, "blocks", list)):
            size = get_bytes(place, block, "size")
            state = get(place, block, "state", str)
            if state not in IN_USE + ("inactive", ):
                raise Problem(f"{place}[\"state\"] is {shown(state)}; accepted: {', '.join(IN_USE)}, inactive")
            at = get_address(place, block, "address") if "address" in block else address
            address += size
            if state == "inactive":
                continue
            # Up to 2.0 what was asked for, and by whom, is in a history.
            history = block.get("history")
            asked = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else block
            wanted = asked.get("real_size", block.get("requested_size", size))
            wanted = wanted if isinstance(wanted, int) and 0 < wanted <= size else size
            if wanted > 0:
                blocks[at] = request(place, asked, wanted, stream)
    return blocks, reserved


# ---- From events to a trace ----------------------------------------------------------------------------------------


class Notes:
    """What could not be told, counted by what it is."""

    def __init__(self):
        self.counts = {}

    def add(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1


class InUse:
    """Blocks in use, in order of address, so that one that overlaps others is noticed."""

    def __init__(self):
        self.addresses, self.ends = [], {}

    def add(self, address, size):
        bisect.insort(self.addresses, address)
        self.ends[address] = address + size

    def remove(self, address):
        del self.ends[address]
        del self.addresses[bisect.bisect_left(self.addresses, address)]

    def overlapping(self, address, size):
        first = bisect.bisect_right(self.addresses, address)
        if first > 0 and self.ends[self.addresses[first - 1]] > address:
            first -= 1
        last = bisect.bisect_left(self.addresses, address + size)
        return self.addresses[first:last]


def check_events(events, device, notes):
    """The events with what they must have; unknown actions are left out and counted."""
    checked = []
    for where, event in each(f"device_traces[{device}]", events):
        action = get(where, event, "action", str)
        if action not in ACTIONS:
            notes.add(f"events of the unknown action {shown(action)}")
            continue
        for key in ACTIONS[action]:
            get_address(where, event, key) if key == "addr" else get_bytes(where, event, key)
        if action in ("alloc", "oom") and event["size"] == 0:
            notes.add("requests of 0 bytes")
            continue
        checked.append((where, event))
    return checked


def blocks_before(events, at_end, streams):
    """Blocks in use before the first event, by address; how many of them only their free tells of."""
    before, seen, freed = {}, set(), 0
    for where, event in events:
        if event["action"] not in ("alloc", "free_completed"):
            continue
        if event["action"] == "free_completed" and event["addr"] not in seen and event["size"] > 0:
            before[event["addr"]] = request(where, event, event["size"], streams.of(where, event, "pool_id"))
            freed += 1
        seen.add(event["addr"])
    for address, block in at_end.items():
        if address not in seen:
            before[address] = block
    return before, freed


def reserved_through(events, reserved_at_end):
    """Bytes reserved after each event, walked back from the segments there are, and the most of them."""
    after, now = [0] * len(events), reserved_at_end
    most = now
    for i in range(len(events) - 1, -1, -1):
        after[i] = now
        event = events[i][1]
        now -= GROWTH.get(event["action"], 0) * event.get("size", 0)
        most = max(most, now)
    return after, most


def step_times(snapshot, device):
    """When steps ended, in microseconds as events have them."""
    annotations = snapshot.get("external_annotations")
    found = {"ProfilerStep#": [], "Optimizer.step#": []}
    for entry in annotations if isinstance(annotations, list) else []:
        if not isinstance(entry, dict) or entry.get("device", device) not in (device, -1):
            continue
        name, stage, time_us = entry.get("name"), entry.get("stage"), entry.get("time_us")
        for prefix, times in found.items():
            if isinstance(name, str) and name.startswith(prefix) and stage == "END" and isinstance(time_us, int):
                times.append(time_us)
    return sorted(found["ProfilerStep#"] or found["Optimizer.step#"])


def convert(snapshot, device, notes):
    """The lines of a trace, head first, and what to say of it."""
    streams = Streams()
    at_end, reserved = segment_blocks(get("the snapshot", snapshot, "segments", list), device, streams)
    events = check_events(snapshot["device_traces"][device], device, notes)
    before, freed = blocks_before(events, at_end, streams)
    after, reserved_peak = reserved_through(events, reserved)
    steps = step_times(snapshot, device)
    in_use, lines, capacity = InUse(), [], 0

    def release(address):
        in_use.remove(address)
        lines.append({"action": "release", "address": address})

    def obtain(address, block):
        for other in in_use.overlapping(address, block["bytes"]):
            notes.add("blocks obtained where others were still in use, which count as released then")
            release(other)
        in_use.add(address, block["bytes"])
        lines.append({"action": "obtain", "address": address, **block})

    for address in sorted(before):
        obtain(address, before[address])
    if before and steps:
        lines.append({"action": "step"})
    for i, (where, event) in enumerate(events):
        while steps and isinstance(event.get("time_us"), int) and event["time_us"] > steps[0]:
            steps.pop(0)
            lines.append({"action": "step"})
        action = event["action"]
        if action == "alloc":
            obtain(event["addr"], request(where, event, event["size"], streams.of(where, event, "pool_id")))
        elif action == "free_completed" and event["addr"] in in_use.ends:
            release(event["addr"])
        elif action == "free_completed":
            notes.add("frees of blocks that were not in use")
        elif action == "oom":
            lines.append({"action": "failed", **request(where, event, event["size"],
                                                        streams.of(where, event, "pool_id"))})
            free = event.get("device_free")
            if isinstance(free, int) and 0 <= free <= LARGEST_BLOCK_BYTES:
                capacity = after[i] + free
    lines.extend({"action": "step"} for _ in steps)
    for address in at_end:
        if address not in in_use.ends:
            notes.add("blocks of the segments that the events say were freed")
    if max(reserved_peak, capacity) > LARGEST_RESERVED_BYTES:
        raise Problem(f"its segments add up to {max(reserved_peak, capacity)} bytes; accepted: up to "
                      f"{LARGEST_RESERVED_BYTES}")
    head = {"vramlab_trace": 1, "reserved_peak_bytes": reserved_peak}
    if capacity > 0:
        head["capacity_bytes"] = capacity
    told = [f"{len(events)} events of device {device}"]
    if before:
        total = sum(block["bytes"] for block in before.values())
        told.append(f"{len(before)} blocks of {total} bytes were in use before the first: {len(before) - freed} known "
                    f"from the segments, {freed} by their free alone")
    return head, lines, told


def choose_device(snapshot, wanted):
    traces = get("the snapshot", snapshot, "device_traces", list)
    for i, trace in enumerate(traces):
        if not isinstance(trace, list):
            raise Problem(f"device_traces[{i}] is no list")
    busy = [i for i, trace in enumerate(traces) if trace]
    if not busy:
        raise Problem("no event was recorded: call torch.cuda.memory._record_memory_history() before the steps")
    if wanted is None and len(busy) > 1:
        listed = ", ".join(f"{i} ({len(traces[i])} events)" for i in busy)
        raise Problem(f"has events of several devices; choose one with --device: {listed}")
    if wanted is not None and wanted not in busy:
        raise Problem(f"has no events of device {wanted}; accepted: {', '.join(map(str, busy))}")
    return busy[0] if wanted is None else wanted


def settings_of(snapshot):
    """How the recorded allocator was set, for the trace's source."""
    settings = snapshot.get("allocator_settings")
    for key in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if isinstance(settings, dict) and isinstance(settings.get(key), str) and settings[key]:
            return f", {clean(settings[key])}"
    return ""


def run(arguments):
    snapshot = load(arguments.snapshot)
    if isinstance(snapshot, list):
        raise Problem("is a list of segments (torch.cuda.memory_snapshot()) without events; take "
                      "torch.cuda.memory._dump_snapshot")
    if not isinstance(snapshot, dict):
        raise Problem(f"holds a {type(snapshot).__name__}; accepted: the dictionary that "
                      "torch.cuda.memory._dump_snapshot writes")
    device, notes = choose_device(snapshot, arguments.device), Notes()
    head, lines, told = convert(snapshot, device, notes)
    if not any(line["action"] == "obtain" for line in lines):
        raise Problem("no block was ever obtained")
    head["source"] = (f"PyTorch snapshot {clean(os.path.basename(arguments.snapshot))}, device {device}"
                      f"{settings_of(snapshot)}")
    out = sys.stdout if arguments.trace == "-" else open(arguments.trace, "w", encoding="utf-8")
    with out:
        for line in [head] + lines:
            print(json.dumps(line, separators=(",", ":")), file=out)
    for text in told:
        print(text, file=sys.stderr)
    for what, count in notes.counts.items():
        print(f"left out or mended: {count} {what}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", help="what torch.cuda.memory._dump_snapshot wrote")
    parser.add_argument("trace", help="the trace to write, - for standard output")
    parser.add_argument("--device", type=int, help="which device, when events of several were recorded")
    arguments = parser.parse_args()
    try:
        run(arguments)
    except Problem as problem:
        print(f"pytorch_snapshot.py: {arguments.snapshot}: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"pytorch_snapshot.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
