"""What `vramlab export` writes, read by the programs it is for: PyTorch's memory_viz, TensorBoard, pandas where it is there.
Runs with the Python of scripts/peers/setup.

usage: test_export_readers.py FOLDER_OF_THE_PROGRAM"""

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    program, folder = Path(sys.argv[1]) / "vramlab", Path(tempfile.mkdtemp())

    def vramlab(*arguments):
        subprocess.run([program, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    vramlab("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--steps", "3", "--timeline", "-q",
            "-o", "store")
    vramlab("export", "store", "-f", "torch-snapshot", "-o", "snapshot.pickle")
    vramlab("export", "store", "-f", "tensorboard", "-o", "runs")
    read_snapshot(folder / "snapshot.pickle")
    read_runs(folder / "runs")


def read_snapshot(path):
    from torch.cuda import _memory_viz

    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    assert "Summary of segments" in _memory_viz.segsum(snapshot)
    trace = _memory_viz.trace(snapshot)
    allocations = sum(event["action"] == "alloc" for event in snapshot["device_traces"][0])
    assert allocations > 100 and trace.count(" = ") >= allocations, trace[:300]
    assert len(_memory_viz.trace_plot(snapshot)) > 100000 and len(_memory_viz.segment_plot(snapshot)) > 1000
    print(f"memory_viz: {allocations} allocations, {len(snapshot['segments'])} segments")


def read_runs(path):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("tensorboard: not installed (scripts/peers/setup)")
        sys.exit(77)
    (run,) = path.iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    assert [value.step for value in events.Scalars("loss")] == [0, 1, 2, 3]
    assert [value.step for value in events.Scalars("step_s")] == [1, 2, 3] and all(v.value > 0 for v in events.Scalars("step_s"))
    assert events.Scalars("mem/needed_mib")[0].value > 50
    print(f"tensorboard: {events.Tags()['scalars']}")


if __name__ == "__main__":
    main()
