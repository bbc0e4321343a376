#include "tests/harness/temporary_directory.h"
#include "base/base.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *make_temporary_directory(void) {
  const char *parent = getenv("TMPDIR");
  char name[4096];
  snprintf(name, sizeof name, "%s/vramlab-test-XXXXXX", parent ? parent : "/tmp");
  if (!mkdtemp(name)) abort();
  return vl_copy_text(name);
}

static int remove_one(const char *path, const struct stat *facts, int type, struct FTW *where) {
  (void)facts, (void)type, (void)where;
  return remove(path);
}

void remove_temporary_directory(const char *directory) {
  nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char *path_in(const char *directory, const char *name) {
  size_t size = strlen(directory) + strlen(name) + 2;
  char *path = vl_allocate(size);
  snprintf(path, size, "%s/%s", directory, name);
  return path;
}

char *read_whole_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  char *content = vl_allocate((size_t)size + 1);
  size_t got = fread(content, 1, (size_t)size, file);
  content[got] = '\0';
  fclose(file);
  return content;
}

void write_whole_file(const char *path, const char *content) {
  FILE *file = fopen(path, "wb");
  if (!file) abort();
  fputs(content, file);
  fclose(file);
}

void write_file_in(const char *directory, const char *name, const char *content) {
  char *path = path_in(directory, name);
  for (char *slash = strchr(path + strlen(directory) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  write_whole_file(path, content);
  free(path);
}

int set_up_directory(void **state) {
  *state = make_temporary_directory();
  return 0;
}

int tear_down_directory(void **state) {
  remove_temporary_directory(*state);
  free(*state);
  return 0;
}
