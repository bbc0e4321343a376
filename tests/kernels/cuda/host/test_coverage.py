"""Every own kernel, in every type it is compiled for, has run on the host machine in the tests before this one: the
kernels that nvcc made are those of the module for GPUs; the ones that ran are told by the machine as places in the
module for the host, whose symbols name them.

usage: test_coverage.py MODULE_FOR_GPUS MODULE_FOR_THE_HOST FILE_OF_PLACES"""
import re
import subprocess
import sys

# Shows that the module's code runs on a card when the device is opened, before any test could ask.
BESIDE = {"write_word"}


def output(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def plain(names):
    """Demangled, without return types, spaces and the names of anonymous namespaces."""
    demangled = output("c++filt", text="\n".join(names)).splitlines()
    return [re.sub(r"^void |\(anonymous namespace\)::|\s", "", name) for name in demangled]


def kernels_of(module):
    """A kernel's host function has its name; beside it is a stub that has the name with parameters after it."""
    names = sorted({line.split()[-1] for line in output("nm", module).splitlines()})
    functions = {re.sub(r"(_cu_[0-9a-f]{8})L(?=\d)", r"\1", name[1:]) for name in names if name.startswith("_Z")}
    stubs = {name.split("__device_stub__", 1)[1] for name in names if "__device_stub__" in name}
    whole = {next((stub[:end] for end in range(len(stub), 0, -1) if stub[:end] in functions), None) for stub in stubs}
    return set(plain(sorted("_" + name for name in whole if name)))


def main():
    card, host, places = sys.argv[1:]
    kernels = kernels_of(card)
    symbols = {int(parts[0], 16): parts[2]
               for parts in (line.split() for line in output("nm", host).splitlines()) if len(parts) == 3}
    with open(places, encoding="utf-8") as file:
        ran = set(plain(sorted({symbols[int(line, 16)] for line in file})))
    missing = sorted(kernel for kernel in kernels - ran if kernel.split("(")[0].split("<")[0] not in BESIDE)
    print(f"{len(kernels)} kernels, {len(kernels & ran)} of them ran")
    for kernel in missing[:40]:
        print("never ran:", kernel[:160])
    return 1 if missing or len(kernels) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
