"""vramlab run --cross-check on the host machine: what the double of CUPTI saw of device memory is what the tracker
reserved and the device names as its own, to the byte, and what a library takes for itself is what is left over. No
time is told. Where there is nothing to check against, or CUPTI cannot be used, the run says so.

usage: test_cross_check.py VRAMLAB FOLDER_OF_THE_HOST_MODULES"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

BERT = ["--case", "bert-base", "--set", "layers=1", "--set", "sequence=16", "--set", "vocabulary=500", "--batch", "2",
        "--warmup", "2", "--steps", "3"]
UNTOLD = ["cross_check_peak_bytes", "cross_check_difference_bytes", "kernels_per_step"]


def run(program, modules, *arguments, **environment):
    return subprocess.run([program, "run", *BERT, "--json", *arguments], capture_output=True, text=True, timeout=110,
                          check=False, env={**os.environ, "VRAMLAB_MODULES": modules, "OMP_NUM_THREADS": "1", **environment})


def record_of(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def check_sums(record, library_bytes):
    assert record["status"] == "ok", record["error"]
    own, peak, live = (record[f"cross_check_{what}_bytes"] for what in ("own", "peak", "live"))
    assert own > 0 and peak >= live > own + library_bytes
    assert record["cross_check_difference_bytes"] == peak - record["peak_reserved_bytes"] - own == library_bytes
    assert record["cross_check_live_difference_bytes"] == library_bytes
    assert record["cross_check_dropped"] == 0 and record["cross_check_allocations"] > 0
    assert record["step_count"] == 0 and record["step_s"] is None
    assert "cross-check" in record["null_reasons"]["step_s"]


def main():
    program, modules = sys.argv[1:]
    cuda = ["--device", "cuda", "--cross-check"]

    plain = record_of(run(program, modules, "--device", "cuda"))
    assert all(plain[name] is None and "--cross-check" in plain["null_reasons"][name] for name in UNTOLD)

    record = record_of(run(program, modules, *cuda))
    check_sums(record, 0)
    assert record["losses"] == plain["losses"] and record["cell_key"] != plain["cell_key"]
    # A step launches the same kernels each time, also as a graph: a whole number, and more than a few a layer.
    assert record["kernels_per_step"] > 50 and record["kernels_per_step"] % 1 == 0
    assert record["kernel_s_per_step"] > 0

    # Updates that come one after the other are one kernel for every 32, but where a tool wants to see each launch.
    shown = subprocess.run([program, "graph", *BERT[:-6]], capture_output=True, text=True, timeout=60, check=True).stdout
    updates = sum(" adamw(" in line for line in shown.splitlines())
    alone = record_of(run(program, modules, *cuda, NVTX_INJECTION64_PATH="none"))
    assert updates > 20 and alone["kernels_per_step"] - record["kernels_per_step"] == updates - 1, updates

    library = 3 << 20
    check_sums(record_of(run(program, modules, *cuda, VRAMLAB_HOST_CARD=f"library={library}")), library)

    record = record_of(run(program, modules, *cuda, "--recipe", "allocator=expandable"))
    assert record["status"] == "ok" and record["cross_check_peak_bytes"] > 0
    assert record["cross_check_difference_bytes"] is None
    assert "expandable" in record["null_reasons"]["cross_check_difference_bytes"]

    for device in ("cpu", "plan"):
        record = record_of(run(program, modules, "--device", device, "--cross-check"))
        assert record["status"] == "unsupported" and "cuda does" in record["error"], record["error"]

    done = run(program, modules, *cuda, VRAMLAB_HOST_CUPTI_IN_USE="1")
    assert done.returncode == 77 and "held by another" in done.stderr, f"{done.returncode} {done.stderr}"
    with tempfile.TemporaryDirectory() as folder:  # a CUPTI that is none
        shutil.copy(os.path.join(modules, "libnvidia-ml.so.1"), os.path.join(folder, "libcupti.so.13"))
        done = run(program, modules, *cuda, LD_LIBRARY_PATH=folder)
        assert done.returncode == 77 and "cuptiActivityRegisterCallbacks" in done.stderr, f"{done.returncode} {done.stderr}"


if __name__ == "__main__":
    main()
