#!/usr/bin/env python3
"""Checks that dependencies between folders point one way only.

Each folder has one public header, and files of other folders include that one alone; which folders a
folder may know is the table below. A folder named utils is an error wherever it is.

usage: check_includes.py [REPOSITORY]
"""

import re
import sys
from pathlib import Path

# Public header of each folder, and the folders it may know besides itself.
LOW = {"base", "graph", "memory"}
DEVICES = LOW | {"devices"}
ENGINE = DEVICES | {"optimizations", "cases", "comm"}
PUBLIC = {
    "base": ("base/base.h", set()),
    "graph": ("graph/graph.h", {"base"}),
    "memory": ("memory/memory.h", {"base"}),
    "devices": ("devices/device.h", LOW),
    "optimizations": ("optimizations/optimizations.h", {"base", "graph"}),
    "cases": ("cases/cases.h", {"base", "graph"}),
    "comm": ("comm/comm.h", DEVICES),
    "kernels/cpu": (None, DEVICES),
    "kernels/cuda": (None, DEVICES),
    "engine": ("engine/engine.h", ENGINE),
    "harness": ("harness/harness.h", ENGINE | {"engine"}),
    "plots": ("plots/plots.h", {"base", "harness"}),
}
SOURCES = {".c", ".h", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def folder_of(path):
    """The folder of the table that a path relative to the repository lies in, or None."""
    fits = [folder for folder in PUBLIC if path.startswith(folder + "/")]
    return max(fits, key=len, default=None)


def included_path(root, source, text):
    """What an include names, relative to the repository: beside the file, or from the top."""
    for base in (source.parent, root):
        candidate = (base / text).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return text


def check_file(root, source, problems):
    path = source.relative_to(root).as_posix()
    folder = folder_of(path)
    content = source.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(content):
        target = included_path(root, source, match.group(1))
        other = folder_of(target)
        place = f"{path}:{content.count(chr(10), 0, match.start(1)) + 1}: includes {target}"
        if target.startswith("tests/"):
            problems.append(f"{place}: nothing outside tests may include a test's file")
        if other is None or other == folder:
            continue
        header, _ = PUBLIC[other]
        if target != header:
            problems.append(f"{place}: only {header} of {other} is public" if header
                            else f"{place}: {other} is a module, reached through devices/device.h alone")
        elif other not in PUBLIC[folder][1]:
            allowed = ", ".join(sorted(PUBLIC[folder][1])) or "no other folder"
            problems.append(f"{place}: {folder} may know {allowed}")


def check_repository(root):
    """All problems found below root, one line each, and the number of files looked at."""
    problems, count = [], 0
    for folder in sorted({entry.split("/")[0] for entry in PUBLIC} | {"tests", "scripts"}):
        for path in sorted((root / folder).rglob("*")):
            if path.is_dir() and path.name in ("utils", "util"):
                problems.append(f"{path.relative_to(root)}: no folder is named {path.name}; "
                                "name it by what its files do")
            if folder in ("tests", "scripts") or path.suffix not in SOURCES:
                continue
            if folder_of(path.relative_to(root).as_posix()) is None:
                problems.append(f"{path.relative_to(root)}: lies in no folder that PUBLIC in {Path(__file__).name} lists")
                continue
            count += 1
            check_file(root, path, problems)
    return problems, count


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    problems, count = check_repository(root)
    if count == 0:
        problems.append(f"{root}: no sources found")
    print("\n".join(problems) if problems else f"{count} files: includes point one way only")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
