"""The data file of `vramlab run --data`: HDF5 with images (N, C, H, W), u8 or f32, labels (N) i32, and the same two
with held_out_ in front. u8 images are scaled to [-1, 1] when read."""

import h5py
import numpy as np


def write_data(path, images, labels, held_out):
    """held_out: a mask over the samples."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype not in (np.uint8, np.float32):
        raise ValueError(f"images are {images.dtype}; accepted: uint8, float32")
    if images.ndim != 4 or images.shape[2] != images.shape[3] or len(labels) != len(images):
        raise ValueError(f"images {images.shape} and labels {labels.shape}; needed: (N, C, S, S) and (N)")
    if held_out.all() or not held_out.any():
        raise ValueError(f"{len(images)} samples do not give both a training and a held-out part")
    with h5py.File(path, "w") as file:
        for prefix, mask in (("", ~held_out), ("held_out_", held_out)):
            file.create_dataset(prefix + "images", data=images[mask])
            file.create_dataset(prefix + "labels", data=labels[mask].astype("i4"))
    print(f"{path}: {(~held_out).sum()} to train on, {held_out.sum()} held out, "
          f"{images.shape[1]} x {images.shape[2]} x {images.shape[3]}, {labels.max() + 1} classes")
