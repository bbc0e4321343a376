#!/usr/bin/env python3
"""Writes scikit-learn's handwritten digits as a data file for `vramlab run --data`.

usage: digits.py OUT.h5

1797 images of 8 x 8 pixels in 17 shades (UCI Optical Recognition of Handwritten Digits), repeated to
3 x 32 x 32 bytes. Every fifth image, by its place in the data set, is held out: 359 held out, 1438 to train on.
Train with: --case resnet50 --set size=32 --set classes=10. Needs scikit-learn and h5py.
"""

import sys

try:
    from sklearn.datasets import load_digits
    from data_file import write_data
except ImportError as error:
    sys.exit(f"digits.py: {error} (scripts/peers/setup installs what it needs)")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    import numpy as np

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype("u1").repeat(4, axis=1).repeat(4, axis=2)
    images = np.repeat(images[:, None], 3, axis=1)
    held_out = np.arange(len(images)) % 5 == 4
    write_data(sys.argv[1], images, digits.target, held_out)


if __name__ == "__main__":
    main()
