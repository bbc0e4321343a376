#!/usr/bin/env python3
"""Golden values of one ResNet-50 training step from PyTorch in float64 (batch 2, 96 x 96).

Writes tests/goldens/resnet50_real.json and resnet50_smooth.json: loss, every parameter gradient, running
statistics after the step, the losses of three SGD steps; beside them what PyTorch's own float32 and bf16
autocast differ by from its float64. Weights and inputs are drawn from Philox by name, as the C case does, and
rounded once to float32; nothing is stored. The smooth twin has GELU for ReLU, an average pool for the maximum
pool, and 0.25 as the scale of each block's last batch norm: its gradients are well conditioned, so a float32
run can be held to them.
"""
import argparse
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
import torchvision

import golden
import philox

SEED, BATCH, SIZE, CLASSES, STEPS = 0, 2, 96, 1000, 3
PARAMETERS = 25_557_032


def smoothed(model):
    """The twin without kinks."""
    def replace(module):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ReLU):
                setattr(module, name, torch.nn.GELU())
            elif isinstance(child, torch.nn.MaxPool2d):
                setattr(module, name, torch.nn.AvgPool2d(3, 2, 1))
            else:
                replace(child)

    replace(model)
    for module in model.modules():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            torch.nn.init.constant_(module.bn3.weight, 0.25)
    return model


def initialised(smooth):
    """float32 model whose convolution and linear weights are drawn by name."""
    model = torchvision.models.resnet50(weights=None)
    if smooth:
        smoothed(model)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            fan_out = parameter.shape[0] * parameter.shape[2] * parameter.shape[3]
            bound = math.sqrt(3.0) * math.sqrt(2.0 / fan_out)
        elif name.startswith("fc."):
            bound = 1.0 / math.sqrt(model.fc.in_features)
        else:
            continue  # batch norm: 1 (0.25) and 0
        drawn = philox.uniform(philox.key(SEED, 0, name), 0, parameter.numel(), bound)
        parameter.data.copy_(torch.from_numpy(drawn).reshape(parameter.shape))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == PARAMETERS, count
    return model.train()


def inputs(step):
    """images and labels of a step, as vl_inputs_synthesize draws them."""
    elements = 3 * SIZE * SIZE
    image_key, label_key = philox.key(SEED, step, "images"), philox.key(SEED, step, "labels")
    images = np.stack([philox.uniform(image_key, sample, elements, math.sqrt(3.0)) for sample in range(BATCH)])
    labels = [int(philox.units(label_key, sample, 1)[0] * CLASSES) for sample in range(BATCH)]
    return torch.from_numpy(images).reshape(BATCH, 3, SIZE, SIZE), torch.tensor(labels)


def backward(model, step, dtype, autocast=False):
    images, labels = inputs(step)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(images.to(dtype))
    loss = F.cross_entropy(logits.double() if dtype is torch.float64 else logits.float(), labels)
    loss.backward()
    return loss.item()


def make(name, smooth, directory):
    head = {"model": "resnet50", "smooth": int(smooth), "seed": SEED, "batch": BATCH, "size": SIZE,
            "parameters": PARAMETERS, "learning_rate": .01, "momentum": .9, "weight_decay": 1e-4}
    golden.make(os.path.join(directory, f"{name}.json"), head, initialised(smooth), backward,
                lambda parameters: torch.optim.SGD(parameters, lr=.01, momentum=.9, weight_decay=1e-4), STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the golden files go")
    directory = parser.parse_args().directory
    philox.check()
    make("resnet50_real", False, directory)
    make("resnet50_smooth", True, directory)


if __name__ == "__main__":
    main()
