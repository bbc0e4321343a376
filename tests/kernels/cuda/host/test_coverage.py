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
    return [re.sub(r"^void |\(anonymous namespace\)::|_GLOBAL__N__\w+::|\s", "", name) for name in demangled]


def main():
    card, host, places = sys.argv[1:]
    stubs = [line.split()[-1] for line in output("nm", card).splitlines() if "__device_stub__" in line]
    mangled = sorted({re.sub(r"^.*?__device_stub__", "", stub) for stub in stubs})
    kernels = set(plain(mangled))
    symbols = {int(parts[0], 16): parts[2]
               for parts in (line.split() for line in output("nm", host).splitlines()) if len(parts) == 3}
    with open(places, encoding="utf-8") as file:
        ran = set(plain(sorted({symbols[int(line, 16)] for line in file})))
    missing = sorted(kernel for kernel in kernels - ran if kernel.split("(")[0].split("<")[0] not in BESIDE)
    print(f"{len(kernels)} kernels, {len(kernels & ran)} of them ran")
    for kernel in missing:
        print("never ran:", kernel)
    return 1 if missing or len(kernels) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
