#!/usr/bin/env python3
"""Writes the docstrings of Python's standard library as text: a sentence a line, a document a module.

usage: docstrings.py OUT.txt

English that every machine with Python has, of a size to try text.py and a small BERT on.
"""

import ast
import re
import sys
import sysconfig
from pathlib import Path

MIN_SENTENCES = 4  # of a document
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "__pycache__"}


def docstrings(path):
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def sentences(text):
    """Paragraphs of prose, divided after a full stop."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
            if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= 3:
                yield sentence


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    root, seen = Path(sysconfig.get_path("stdlib")), set()
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        for path in sorted(root.rglob("*.py")):
            if SKIPPED & set(path.relative_to(root).parts):
                continue
            lines = [line for text in docstrings(path) for line in sentences(text)]
            lines = [line for line in dict.fromkeys(lines) if line not in seen]  # what two modules share, once
            seen.update(lines)
            if len(lines) >= MIN_SENTENCES:
                out.write("".join(line + "\n" for line in lines) + "\n")


if __name__ == "__main__":
    main()
