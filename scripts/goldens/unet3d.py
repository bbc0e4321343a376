#!/usr/bin/env python3
"""Golden values of one training step of the 3D U-Net from PyTorch in float64.

Writes tests/goldens/unet3d_groups.json (groups of 4, four images a volume, five classes) and unet3d_smooth.json (dense,
GELU for ReLU: its gradients are well conditioned, so a float32 run can be held to them), of volumes whose sides differ: loss, every parameter gradient, the losses of three SGD steps; beside them what PyTorch's
own float32 and bf16 autocast differ by from its float64. Weights and inputs are drawn from Philox by name, as the C case
does, and rounded once to float32; nothing is stored.
"""
import argparse
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import golden
import philox

SEED, STEPS, EPSILON = 0, 3, 1e-5
WIDTHS = [32, 64, 128, 256, 320]


class UNet(nn.Module):
    def __init__(self, channels, classes, groups, smooth):
        super().__init__()

        def unit(inputs, outputs, stride=1):
            used = groups if inputs % groups == 0 and outputs % groups == 0 else 1
            return nn.Sequential(nn.Conv3d(inputs, outputs, 3, stride, 1, groups=used, bias=False),
                                 nn.InstanceNorm3d(outputs, affine=True),
                                 nn.GELU() if smooth else nn.ReLU(inplace=True))

        self.enc, self.up, self.dec = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        inputs = channels
        for level, width in enumerate(WIDTHS):
            self.enc.append(nn.Sequential(unit(inputs, width, 1 if level == 0 else 2), unit(width, width)))
            inputs = width
        for width, below in zip(WIDTHS[-2::-1], WIDTHS[:0:-1]):
            self.up.append(nn.ConvTranspose3d(below, width, 2, 2))
            self.dec.append(nn.Sequential(unit(2 * width, width), unit(width, width)))
        self.head = nn.Conv3d(WIDTHS[0], classes, 1)

    def forward(self, x):
        skips = []
        for level in self.enc:
            x = level(x)
            skips.append(x)
        skips.pop()
        for up, level in zip(self.up, self.dec):
            x = level(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


def initialised(shape):
    """float32 model whose convolutions are drawn by name; norms are 1 and 0."""
    model = UNet(shape["channels"], shape["classes"], shape["groups"], shape["smooth"])
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        module = modules[name.rpartition(".")[0]]
        if isinstance(module, nn.InstanceNorm3d):
            continue
        bound = 1.0 / math.sqrt(module.weight[0].numel())
        drawn = philox.uniform(philox.key(SEED, 0, name), 0, parameter.numel(), bound)
        parameter.data.copy_(torch.from_numpy(drawn).reshape(parameter.shape))
    return model


def dice_cross_entropy(logits, labels):
    """Cross entropy, plus 1 minus the mean over the classes of the batch's soft Dice."""
    p = logits.softmax(1)
    there = F.one_hot(labels, logits.shape[1]).movedim(-1, 1).to(p.dtype)
    places = [0] + list(range(2, p.dim()))
    shared, predicted, labelled = ((values.sum(places)) for values in (p * there, p, there))
    dice = (2 * shared + EPSILON) / (predicted + labelled + EPSILON)
    return F.cross_entropy(logits, labels) + (1 - dice.mean())


def backward_of(shape):
    batch, channels, classes = shape["batch"], shape["channels"], shape["classes"]
    sides = [shape[side] for side in ("depth", "height", "width")]
    voxels = math.prod(sides)

    def backward(model, step, dtype, autocast):
        image_key, label_key = philox.key(SEED, step, "images"), philox.key(SEED, step, "labels")
        images = np.stack([philox.uniform(image_key, n, channels * voxels, math.sqrt(3.0)) for n in range(batch)])
        labels = np.stack([np.floor(philox.units(label_key, n, voxels) * classes) for n in range(batch)]).astype(np.int64)
        images = torch.from_numpy(images).reshape(batch, channels, *sides)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(images.to(dtype))
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        loss = dice_cross_entropy(logits.to(wide), torch.from_numpy(labels).reshape(batch, *sides))
        loss.backward()
        return loss.item()

    return backward


def make(name, directory, **shape):
    shape = {"batch": 1, "depth": 16, "height": 32, "width": 48, "channels": 1, "classes": 3, "groups": 1, "smooth": 0,
             **shape}
    initial = initialised(shape)
    head = {"model": "unet3d", "seed": SEED, **shape,
            "parameters": sum(parameter.numel() for parameter in initial.parameters()),
            "learning_rate": .01, "momentum": .9}
    golden.make(os.path.join(directory, f"{name}.json"), head, initial, backward_of(shape),
                lambda parameters: torch.optim.SGD(parameters, lr=.01, momentum=.9), STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the golden files go")
    directory = parser.parse_args().directory
    philox.check()
    make("unet3d_smooth", directory, smooth=1)
    make("unet3d_groups", directory, batch=2, depth=32, height=16, channels=4, classes=5, groups=4)


if __name__ == "__main__":
    main()
