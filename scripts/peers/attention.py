#!/usr/bin/env python3
"""Time PyTorch's scaled_dot_product_attention as bench-attention times ours: the same packed input, forward and
backward, with and without dropout (on a CPU its fused kernel knows none). Of one thread its CPU time.

usage: attention.py [BATCH] [LENGTH] [HEADS] [SIZE] [REPETITIONS] [THREADS]
Exit code 77 when PyTorch is not installed.
"""
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}; scripts/peers/setup installs it", file=sys.stderr)
    sys.exit(77)

given = [int(text) for text in sys.argv[1:7]]
batch, length, heads, size, repetitions, threads = given + [8, 128, 12, 64, 9, 1][len(given):]
torch.set_num_threads(threads)
clock = time.process_time if threads == 1 else time.perf_counter


def once(qkv, weights, dropout):
    """Seconds of forward and of backward."""
    qkv.grad = None
    start = clock()
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    y = y.transpose(1, 2).reshape(batch, length, heads * size)
    between = clock()
    y.backward(weights)
    return between - start, clock() - between


for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    qkv = torch.randn(batch, length, 3, heads, size, dtype=dtype, requires_grad=True)
    weights = torch.randn(batch, length, heads * size, dtype=dtype)
    for dropout in (0.1, 0.0):
        once(qkv, weights, dropout)
        times = [once(qkv, weights, dropout) for _ in range(repetitions)]
        forward, backward = (min(side) * 1e3 for side in zip(*times))
        print(f"torch {name:4} dropout {dropout}: forward {forward:.3f} ms, backward {backward:.3f} ms, "
              f"both {forward + backward:.3f} ms")
