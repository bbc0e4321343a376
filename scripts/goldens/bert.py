#!/usr/bin/env python3
"""Golden values of one BERT pretraining step from PyTorch in float64, without dropout.

Writes tests/goldens/bert_small.json (two narrow layers, whole) and bert_layer.json (one layer of BERT-base at full
width with a small vocabulary): loss, every parameter gradient, the losses of three AdamW steps; beside them what
PyTorch's own float32 and bf16 autocast differ by from its float64. Weights and inputs are drawn from Philox by name,
as the C case does, and rounded once to float32; nothing is stored.
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

SEED, STEPS = 0, 3


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.f1, self.f2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.l1, self.l2 = nn.LayerNorm(hidden, 1e-12), nn.LayerNorm(hidden, 1e-12)

    def forward(self, x):
        batch, sequence, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = self.l1(x + self.o(mixed.transpose(1, 2).reshape(batch, sequence, hidden)))
        return self.l2(x + self.f2(F.gelu(self.f1(x))))


class Bert(nn.Module):
    def __init__(self, hidden, layers, heads, vocabulary):
        super().__init__()
        self.w, self.p, self.t = nn.Embedding(vocabulary, hidden), nn.Embedding(512, hidden), nn.Embedding(2, hidden)
        self.ln = nn.LayerNorm(hidden, 1e-12)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.pool, self.nsp = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.tr, self.trn = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, 1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens, segments, positions):
        x = self.ln(self.w(tokens) + self.p.weight[:tokens.shape[1]] + self.t(segments))
        for layer in self.layers:
            x = layer(x)
        masked = x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        scores = F.linear(self.trn(F.gelu(self.tr(masked))), self.w.weight, self.bias)
        return scores, self.nsp(torch.tanh(self.pool(x[:, 0])))


def initialised(shape):
    """float32 model whose embeddings and linear layers are drawn by name."""
    model = Bert(shape["hidden"], shape["layers"], shape["heads"], shape["vocabulary"])
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        module = modules.get(name.rpartition(".")[0])
        if isinstance(module, nn.Embedding):
            bound = math.sqrt(3.0) * 0.02
        elif isinstance(module, nn.Linear):
            bound = 1.0 / math.sqrt(module.in_features)
        else:
            continue  # norms and the vocabulary's bias: 1 and 0
        drawn = philox.uniform(philox.key(SEED, 0, name), 0, parameter.numel(), bound)
        parameter.data.copy_(torch.from_numpy(drawn).reshape(parameter.shape))
    return model


def whole(name, step, batch, elements, below):
    """A whole-number input, as vl_inputs_synthesize draws it."""
    key = philox.key(SEED, step, name)
    rows = [np.floor(philox.units(key, sample, elements) * below).astype(np.int64) for sample in range(batch)]
    return torch.from_numpy(np.stack(rows))


def backward_of(shape):
    batch, sequence, vocabulary = shape["batch"], shape["sequence"], shape["vocabulary"]
    predictions = sequence * 15 // 100 + 1

    def backward(model, step, dtype, autocast):
        tokens, segments = whole("tokens", step, batch, sequence, vocabulary), whole("segments", step, batch, sequence, 2)
        positions = whole("positions", step, batch, predictions, sequence)
        labels, follows = whole("labels", step, batch, predictions, vocabulary), whole("follows", step, batch, 1, 2)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores, order = model(tokens, segments, positions)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        loss = (F.cross_entropy(scores.to(wide).view(-1, vocabulary), labels.view(-1)) +
                F.cross_entropy(order.to(wide), follows.view(-1)))
        loss.backward()
        return loss.item()

    return backward


def make(name, shape, directory):
    initial = initialised(shape)
    head = {"model": "bert-base", "seed": SEED, **shape,
            "parameters": sum(parameter.numel() for parameter in initial.parameters()),
            "learning_rate": 1e-4, "weight_decay": .01}
    golden.make(os.path.join(directory, f"{name}.json"), head, initial, backward_of(shape),
                lambda parameters: torch.optim.AdamW(parameters, lr=1e-4), STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the golden files go")
    directory = parser.parse_args().directory
    philox.check()
    make("bert_small", dict(batch=3, sequence=24, layers=2, hidden=64, heads=4, vocabulary=500), directory)
    make("bert_layer", dict(batch=2, sequence=32, layers=1, hidden=768, heads=12, vocabulary=1000), directory)


if __name__ == "__main__":
    main()
