/* Free blocks ordered by stream, size and place: a treap, every operation O(log n). Priorities are hashes
 * of the place, so the shape of the tree is the same in every run. */
#include "memory/internal.h"

static bool node_is_before(const FreeNode *a, const FreeNode *b) {
  if (a->stream != b->stream) return a->stream < b->stream;
  if (a->bytes != b->bytes) return a->bytes < b->bytes;
  if (a->segment != b->segment) return a->segment < b->segment;
  return a->offset < b->offset;
}

/* The finalizer of MurmurHash3: places are regular, priorities must not be. */
static uint64_t priority_of(const FreeNode *node) {
  uint64_t z = (uint64_t)node->segment * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)node->offset;
  z = (z ^ (z >> 33)) * UINT64_C(0xff51afd7ed558ccd);
  z = (z ^ (z >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
  return z ^ (z >> 33);
}

/* Splits a tree into the nodes before key and the others. */
static void split(FreeNode *tree, const FreeNode *key, FreeNode **before, FreeNode **others) {
  while (tree != NULL) {
    if (node_is_before(tree, key)) {
      *before = tree;
      before = &tree->right;
      tree = tree->right;
    } else {
      *others = tree;
      others = &tree->left;
      tree = tree->left;
    }
  }
  *before = NULL;
  *others = NULL;
}

/* Joins two trees, every node of `before` being before every node of `others`. */
static FreeNode *join(FreeNode *before, FreeNode *others) {
  FreeNode *root = NULL;
  FreeNode **link = &root;
  while (before != NULL && others != NULL) {
    if (before->priority >= others->priority) {
      *link = before;
      link = &before->right;
      before = before->right;
    } else {
      *link = others;
      link = &others->left;
      others = others->left;
    }
  }
  *link = before != NULL ? before : others;
  return root;
}

void vl_free_tree_insert(FreeTree *tree, FreeNode *node) {
  node->priority = priority_of(node);
  FreeNode **link = &tree->root;
  while (*link != NULL && (*link)->priority >= node->priority) {
    link = node_is_before(node, *link) ? &(*link)->left : &(*link)->right;
  }
  split(*link, node, &node->left, &node->right);
  *link = node;
}

void vl_free_tree_remove(FreeTree *tree, FreeNode *node) {
  FreeNode **link = &tree->root;
  while (*link != node) {
    link = node_is_before(node, *link) ? &(*link)->left : &(*link)->right;
  }
  *link = join(node->left, node->right);
  node->left = NULL;
  node->right = NULL;
}

/* The first node that is not before the key. */
static FreeNode *first_from(const FreeTree *tree, const FreeNode *key) {
  FreeNode *first = NULL;
  for (FreeNode *node = tree->root; node != NULL;) {
    if (node_is_before(node, key)) {
      node = node->right;
    } else {
      first = node;
      node = node->left;
    }
  }
  return first;
}

FreeNode *vl_free_tree_best_fit(const FreeTree *tree, int stream, int64_t bytes) {
  const FreeNode lowest = {.stream = stream, .bytes = bytes, .segment = INT64_MIN};
  FreeNode *best = first_from(tree, &lowest);
  return best != NULL && best->stream == stream ? best : NULL;
}

FreeNode *vl_free_tree_next(const FreeTree *tree, const FreeNode *node) {
  const FreeNode after = {
      .stream = node->stream, .bytes = node->bytes, .segment = node->segment, .offset = node->offset + 1};
  return first_from(tree, &after);
}

FreeNode *vl_free_tree_last_below(const FreeTree *tree, int stream, int64_t bytes) {
  const FreeNode key = {.stream = stream, .bytes = bytes, .segment = INT64_MIN};
  FreeNode *last = NULL;
  for (FreeNode *node = tree->root; node != NULL;) {
    if (node_is_before(node, &key)) {
      last = node;
      node = node->right;
    } else {
      node = node->left;
    }
  }
  return last != NULL && last->stream == stream ? last : NULL;
}
