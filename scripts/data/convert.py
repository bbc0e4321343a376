#!/usr/bin/env python3
"""Converts images to a data file for `vramlab run --data`.

INPUT is an .npz file with arrays images (N, C, S, S) or (N, S, S, C) or (N, S, S), u8 or f32, and labels (N), or a
folder with one subfolder of images per class (needs Pillow); classes are numbered in order of their names. Every
--held-out-th sample of each class, in that order, is held out.
"""

import argparse
import sys
from pathlib import Path

try:
    import numpy as np
    from data_file import write_data
except ImportError as error:
    sys.exit(f"convert.py: {error} (it needs numpy and h5py)")


def channels_first(images):
    """(N, S, S) gets three equal channels; a last dimension of 1 or 3 is taken for the channels."""
    if images.ndim == 3:
        images = np.repeat(images[:, None], 3, axis=1)
    if images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] == 1:
        images = np.repeat(images, 3, axis=1)
    return images if images.dtype == np.uint8 else images.astype("f4")


def read_npz(path):
    with np.load(path) as arrays:
        missing = [name for name in ("images", "labels") if name not in arrays]
        if missing:
            raise ValueError(f"{path} has no {' and no '.join(missing)}, but {', '.join(arrays) or 'nothing'}")
        return channels_first(arrays["images"]), arrays["labels"].ravel()


def read_folder(path, size):
    from PIL import Image

    if not size:
        raise ValueError("a folder of images needs --size")
    images, labels = [], []
    classes = sorted(entry for entry in path.iterdir() if entry.is_dir())
    for label, folder in enumerate(classes):
        for file in sorted(folder.iterdir()):
            with Image.open(file) as image:
                images.append(np.asarray(image.convert("RGB").resize((size, size))))
                labels.append(label)
    if not images:
        raise ValueError(f"{path} has no subfolders with images")
    return channels_first(np.stack(images)), np.array(labels)


def every_nth(labels, n):
    """A mask that takes every nth sample of each class."""
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[n - 1::n]] = True
    return mask


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", metavar="INPUT", type=Path)
    parser.add_argument("output", metavar="OUT.h5", type=Path)
    parser.add_argument("--size", type=int, metavar="PIXELS", help="side to resize a folder's images to")
    parser.add_argument("--held-out", type=int, default=5, metavar="N", help="hold out every Nth (default 5)")
    arguments = parser.parse_args()
    if arguments.held_out < 2:
        parser.error(f"--held-out is {arguments.held_out}; at least 2 is needed")
    try:
        if arguments.input.is_dir():
            images, labels = read_folder(arguments.input, arguments.size)
        else:
            images, labels = read_npz(arguments.input)
        write_data(arguments.output, images, labels, every_nth(labels, arguments.held_out))
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"convert.py: {error}")


if __name__ == "__main__":
    main()
