#!/usr/bin/env python3
"""From NIfTI files to a data file: what convert takes, what it refuses and where it says the fault is."""

import gzip
import struct
import sys
import unittest

from program import BIN, ProgramTest, main

INT16, FLOAT32, UINT8 = (4, "h"), (16, "f"), (2, "B")


def nifti(size, values, kind=INT16, channels=1, spacing=(1, 2, 3), slope=0.0):
    """size: depth, height, width; values are in that order, for each channel."""
    code, letter = kind
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 4 if channels > 1 else 3, *reversed(size), channels, 1, 1, 1)
    struct.pack_into("<2h", header, 70, code, 8 * struct.calcsize(letter))
    struct.pack_into("<8f", header, 76, 1, *reversed(spacing), 1, 1, 1, 1)
    struct.pack_into("<3f", header, 108, 352, slope, 0)
    header[344:348] = b"n+1\0"
    return bytes(header) + struct.pack(f"<{len(values)}{letter}", *values)


class Convert(ProgramTest):
    size = (4, 5, 6)
    voxels = 4 * 5 * 6

    def setUp(self):
        super().setUp()
        (self.folder / "task/imagesTr").mkdir(parents=True)
        (self.folder / "task/labelsTr").mkdir()
        for i in range(3):
            self.image(f"case{i}", nifti(self.size, [v % 7 + i for v in range(self.voxels)]))
            self.labels(f"case{i}", nifti(self.size, [v % 3 for v in range(self.voxels)], UINT8))

    def write(self, part, name, data):
        (self.folder / "task" / part / f"{name}.nii.gz").write_bytes(gzip.compress(data))

    def image(self, name, data):
        self.write("imagesTr", name, data)

    def labels(self, name, data):
        self.write("labelsTr", name, data)

    def refused(self, says, code=2):
        self.refuses("convert", "task", "out.h5", says=says, code=code)
        self.assertEqual([file.name for file in self.folder.iterdir()], ["task"])

    def test_a_folder_becomes_a_file(self):
        said = self.run_program("convert", "task", "out.h5", "--held-out", "2").stdout
        self.assertIn("out.h5: 2 volumes to train on, 1 held out, 1 channels, 3 classes", said)
        self.assertIn("--set channels=1 --set classes=3 --data out.h5", said)
        said = self.run_program("convert", "task", "out.h5").stdout  # replaces it; of few the last one is held out
        self.assertIn("2 volumes to train on, 1 held out", said)
        try:
            import h5py
        except ImportError:
            return
        with h5py.File(self.folder / "out.h5") as file:
            volume = file["held_out_volumes/case2"]
            self.assertEqual(volume["image"].shape, (1, *self.size))
            self.assertEqual(list(volume.attrs["spacing_mm"]), [1, 2, 3])
            self.assertEqual(volume["image"][0].ravel().tolist(), [v % 7 + 2 for v in range(self.voxels)])
            self.assertEqual(volume["labels"][:].ravel().tolist(), [v % 3 for v in range(self.voxels)])
            self.assertAlmostEqual(volume["image"].attrs["mean"][0], volume["image"][:].mean(), places=5)

    def test_channels_are_a_dimension_or_files(self):
        for i in range(3):
            (self.folder / f"task/imagesTr/case{i}.nii.gz").unlink()
            for channel in range(4):
                self.image(f"case{i}_{channel:04d}", nifti(self.size, [channel] * self.voxels, FLOAT32))
        self.assertIn("4 channels", self.run_program("convert", "task", "files.h5").stdout)
        for i in range(3):
            self.image(f"case{i}", nifti(self.size, list(range(2 * self.voxels)), channels=2))
        self.assertIn("2 channels", self.run_program("convert", "task", "dimension.h5").stdout)

    def test_what_does_not_fit_is_refused(self):
        self.refuses("convert", "task", says="give the folder to read and the file to write", code=2)
        self.refuses("convert", "nothing", "out.h5", says="nothing/labelsTr")
        self.labels("case1", nifti((4, 5, 7), [0] * 140, UINT8))
        self.refused(["task/labelsTr/case1.nii.gz", "4 x 5 x 7", "its image"])
        self.labels("case1", nifti(self.size, [0] * self.voxels, UINT8, spacing=(1, 2, 4)))
        self.refused(["task/labelsTr/case1.nii.gz", "1 x 2 x 4 mm"])
        self.labels("case1", nifti(self.size, [0] * 100 + [0.5] * 20, FLOAT32))
        self.refused(["case1.nii.gz", "label 0.5, at (3, 1, 4)"])
        self.labels("case1", nifti(self.size, [-1] * self.voxels))
        self.refused("label -1")
        self.labels("case1", nifti(self.size, [0] * self.voxels, UINT8))
        self.image("case1", nifti(self.size, [0] * 2 * self.voxels, channels=2))
        self.refused(["case1", "2 channels, those before it have 1"])
        (self.folder / "task/imagesTr/case1.nii.gz").unlink()
        self.refused(["task/imagesTr", "case1.nii.gz", "case1_0000.nii.gz"])

    def test_broken_files_are_named(self):
        whole = nifti(self.size, list(range(self.voxels)))
        self.image("case2", whole[:200])
        self.refused(["task/imagesTr/case2.nii.gz is truncated", "200 bytes"])
        self.image("case2", whole[:400])
        self.refused(["task/imagesTr/case2.nii.gz is truncated", "of 592 bytes", "there are 400"])
        (self.folder / "task/imagesTr/case2.nii.gz").write_bytes(gzip.compress(whole)[:150])
        self.refused("task/imagesTr/case2.nii.gz")
        self.image("case2", whole[:40] + struct.pack("<h", 9) + whole[42:])
        self.refused(["task/imagesTr/case2.nii.gz", "dim[0] is 9"])
        self.image("case2", b"not an image at all" * 40)
        self.refused(["task/imagesTr/case2.nii.gz", "not NIfTI-1"])


if __name__ == "__main__":
    if b"built without nifticlib" in (BIN / "vramlab").read_bytes():
        print("skipped: this program was built without nifticlib (scripts/setup installs it)", file=sys.stderr)
        sys.exit(77)
    main()
