/* Small networks for tests of graph, optimizations and engine, built through graph.h as cases are. */
#ifndef VRAMLAB_TESTS_NETWORKS_H
#define VRAMLAB_TESTS_NETWORKS_H

#include "graph/graph.h"

/* Fails the test with the message when the status is not VL_OK. */
void require_ok(Status status);

typedef struct NetOptions {
  int64_t batch, size; /* images of (batch, 3, size, size) */
  double dropout;      /* rate at the end of each block; 0: none */
  bool evaluation;     /* the evaluation graph */
  bool adamw;          /* instead of SGD */
  bool two_losses;     /* a second classifier, of 2 classes on the same features, whose loss is added */
} NetOptions;

/* Stem, max pool, three bottleneck-like blocks (1x1, 3x3, 1x1, the first with a projection), a linear layer
 * to 10 classes: ResNet in small, parameters named as there. */
void network_bottlenecks(const NetOptions *options, Program *program);

/* Fault case D4: `layers` equal blocks, each a chain of 8 GELUs over a tensor of `elements` f32. A GELU saves
 * its input, so that a layer saves 8 tensors, the first of which is its boundary. */
void network_layers(int32_t layers, int64_t elements, Program *program);

/* Fault case D1: sum(dropout(p) * q) over 64 elements, p and q ones, in a block of its own that another
 * follows. The gradient of p is the mask the backward draws; that of q is the dropout's output, which
 * checkpointing repeats. */
void network_dropout(Program *program);

/* Fault case D3: batch norm, ReLU and a product over one channel of constant images, in a block that another
 * follows, so that checkpointing repeats the norm. */
void network_running_mean(Program *program);

/* Words in, words out: rows of a table, two blocks of a gated linear layer beside its input, some tokens
 * picked, and their products with the whole table, whose gradient so has two parts. */
void network_tied(Program *program);

/* Volumes of (batch, 2, 7, 6, 5): three 3-D convolutions, each with instance norm and an in-place ReLU (the
 * last one leaky) in a block of its own, the first one's output added to the second's, that sum through a
 * 1x1x1 convolution and the second's output side by side in front of the third; three classes a place, by
 * cross entropy and `dice` times a Dice loss. */
void network_volumes(int64_t batch, double dice, Program *program);

#endif
