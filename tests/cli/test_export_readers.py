"""What `vramlab export` writes, read by the programs it is for: PyTorch's memory_viz, pandas, TensorBoard. Runs with the Python
of scripts/peers/setup. (Perfetto: test_perfetto.py.)

usage: test_export_readers.py FOLDER_OF_THE_PROGRAM"""

import json
import os
import pickle
import shutil
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
    vramlab("plan", "--case", "bert-base", "--set", "layers=1", "-q", "-o", "store")
    add_odd_cells(folder / "store/journal.jsonl")
    odd_locale = decimal_comma(folder)
    for name in ("csv", "jsonl"):
        subprocess.run([program, "export", "store", "-f", name, "-o", f"out.{name}"], cwd=folder, check=True, env=odd_locale)
    read_tables(folder / "out.csv", folder / "out.jsonl")
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


def add_odd_cells(journal):
    """Names with everything in them, values that are not known, and keys that look like numbers."""
    lines = journal.read_text(encoding="utf-8").splitlines()
    for key, name in (("f" * 16, 'a,b "c" <d> & \'e\' ü\n{f}\r;\t=1+1'), ("0000000000000012", "1,5"), ("12e4567890123456", "-")):
        odd = dict(json.loads(lines[1]), cell_key=key, settings=name, error=name, status="crashed", needed_bytes=None, step_s=None)
        lines.append(json.dumps(odd))
    journal.write_text("\n".join(lines) + "\n", encoding="utf-8")


def decimal_comma(folder):
    """The environment, with a locale that has one where the system can make it."""
    if not shutil.which("localedef"):
        return os.environ
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", folder / "de_DE.UTF-8"], capture_output=True, check=False)
    return {**os.environ, "LOCPATH": str(folder), "LC_ALL": "de_DE.UTF-8"} if (folder / "de_DE.UTF-8").exists() else os.environ


def read_tables(csv, jsonl):
    """Both as README says to read them: texts are texts, counts are whole, what is not known is NA."""
    try:
        import pandas
    except ImportError:
        print("pandas: not installed (scripts/peers/setup)")
        sys.exit(77)
    records = [json.loads(line) for line in jsonl.read_text(encoding="utf-8").splitlines()]
    table = pandas.read_csv(csv, dtype={"cell_key": str}, dtype_backend="numpy_nullable")
    lines = pandas.read_json(jsonl, lines=True, dtype=False)
    assert len(table) == len(lines) == len(records) == 5
    assert list(lines["cell_key"]) == [record["cell_key"] for record in records]
    kinds = {int: "Int64", float: "Float64", bool: "boolean"}
    compared = 0
    for name in set(records[0]) & set(table.columns):
        known = [type(record[name]) for record in records if record[name] is not None]
        assert not known or known[0] is str or str(table[name].dtype) == kinds[known[0]], (name, table[name].dtype)
        for record, read in zip(records, table[name]):
            assert pandas.isna(read) if record[name] is None else read == record[name], (name, read, record[name])
            compared += record[name] is not None
    assert str(table["peak_parameter_bytes"].dtype) == "Int64"
    print(f"pandas: {compared} values of {len(table)} cells, settings {table['settings'].iloc[2]!r}")


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
