#include "harness/columns.h"

#include "vramlab_build.h"
#include <stdbool.h>

#if defined __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

BuildFacts vl_build_facts(void) {
  return (BuildFacts){.version = VRAMLAB_VERSION,
                      .git_commit = VRAMLAB_BUILD_COMMIT,
                      .compiler = COMPILER,
                      .git_dirty = VRAMLAB_BUILD_DIRTY};
}
