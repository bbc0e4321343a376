#include "harness/columns.h"

#include "vramlab_build.h"
#include <stdbool.h>

BuildFacts vl_build_facts(void) {
  return (BuildFacts){
      .version = VRAMLAB_VERSION, .git_commit = VRAMLAB_BUILD_COMMIT, .git_dirty = VRAMLAB_BUILD_DIRTY};
}
