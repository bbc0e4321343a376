"""J4 of the fault cases: without a driver, with an old one, without a card and with every card hidden, what needs no
card works, what needs one says why not with its own exit code, and no peak is told as if it had been measured.

usage: test_no_card.py VRAMLAB FOLDER_OF_THE_HOST_MODULE"""
import os
import subprocess
import sys
import tempfile

WITHOUT = {"no driver": {"VRAMLAB_HOST_CARD": "driver=0"}, "an old driver": {"VRAMLAB_HOST_CARD": "driver=12080"},
           "no card": {"VRAMLAB_HOST_CARD": "cards=0"}, "cards hidden": {"CUDA_VISIBLE_DEVICES": ""}}
SMALL = ["--case", "resnet50", "--batch", "1", "--set", "size=64", "--steps", "1"]


def run(program, modules, environment, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "VRAMLAB_MODULES": modules, **environment})
        return done, os.listdir(folder)


def main():
    program, modules = sys.argv[1:]
    for what, environment in WITHOUT.items():
        for arguments in (["--help"], ["--version"], ["plan", *SMALL, "--profile", "V100-32GB"],
                          ["run", *SMALL, "--device", "cpu"]):
            done, _ = run(program, modules, environment, *arguments)
            assert done.returncode == 0, f"{what}: {arguments}: {done.returncode}\n{done.stderr}"
        done, left = run(program, modules, environment, "run", *SMALL, "--device", "cuda", "--json")
        assert done.returncode == 77, f"{what}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not left and "peak" not in done.stdout, f"{what}: {left} {done.stdout}"
        told = "CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in environment else "of the runtime: 13"
        assert told in done.stderr, f"{what}: {done.stderr}"


if __name__ == "__main__":
    main()
