/* Which commit fixed each entry of a claims file: the newest that any of its lines comes from, as `git blame`
 * tells. Without git, or outside a checkout, there is none to name. */
#include "harness/claims.h"
#include "harness/report_process.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BLAME_BYTES = 1 << 20, MAX_COMMITS = 1024, HASH_DIGITS = 40 };

/* When a commit was made; blame says so once, where it names the commit first. */
typedef struct CommitTime {
  char hash[HASH_DIGITS + 1];
  int64_t time_s;
} CommitTime;

typedef struct Blame {
  ClaimFile *file;
  CommitTime *commits;
  int32_t count;
} Blame;

/* A block of lines from one commit: "<hash> <line there> <first line here> <lines>". */
typedef struct BlameBlock {
  char hash[HASH_DIGITS + 1];
  int32_t first, lines;
} BlameBlock;

static bool read_block(const char *text, BlameBlock *block) {
  int32_t there;
  return strspn(text, "0123456789abcdef") == HASH_DIGITS &&
         sscanf(text, "%40s %" SCNd32 " %" SCNd32 " %" SCNd32, block->hash, &there, &block->first,
                &block->lines) == 4;
}

static CommitTime *find_commit(Blame *blame, const char *hash) {
  for (int32_t i = 0; i < blame->count; i++)
    if (strcmp(blame->commits[i].hash, hash) == 0) return &blame->commits[i];
  if (blame->count == MAX_COMMITS) return NULL;
  CommitTime *commit = &blame->commits[blame->count++];
  memcpy(commit->hash, hash, sizeof(commit->hash));
  return commit;
}

/* Lines that no commit holds yet have a hash of zeros. */
static bool is_uncommitted(const char *hash) { return strspn(hash, "0") == HASH_DIGITS; }

static void mark_claims(const Blame *blame, const BlameBlock *block, const CommitTime *commit) {
  for (int32_t i = 0; i < blame->file->count; i++) {
    Claim *claim = &blame->file->claims[i];
    if (block->first + block->lines <= claim->first_line || block->first > claim->last_line) continue;
    if (is_uncommitted(block->hash)) {
      claim->uncommitted = true;
    } else if (claim->commit[0] == '\0' || commit->time_s > claim->commit_time_s) {
      claim->commit_time_s = commit->time_s;
      snprintf(claim->commit, sizeof(claim->commit), "%.10s", block->hash);
    }
  }
}

static void read_blame(Blame *blame, char *text) {
  BlameBlock block = {.lines = 0};
  CommitTime *commit = NULL;
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    if (read_block(line, &block))
      commit = find_commit(blame, block.hash);
    else if (commit != NULL && strncmp(line, "committer-time ", 15) == 0)
      commit->time_s = strtoll(line + 15, NULL, 10);
    else if (commit != NULL && strncmp(line, "filename ", 9) == 0) /* the last of a block */
      mark_claims(blame, &block, commit);
  }
}

void vl_claims_find_commits(ClaimFile *file) {
  char directory[4096];
  snprintf(directory, sizeof(directory), "%s", file->path);
  char *slash = strrchr(directory, '/');
  const char *name = slash != NULL ? slash + 1 : file->path;
  char name_copy[4096];
  snprintf(name_copy, sizeof(name_copy), "%s", name);
  if (slash != NULL)
    slash[1] = '\0';
  else
    snprintf(directory, sizeof(directory), ".");
  const char *const argv[] = {"git", "-C", directory, "blame", "--incremental", "--", name_copy, NULL};
  char *out = vl_allocate(BLAME_BYTES);
  int code = 0;
  Status ran = vl_process_run(argv, NULL, out, BLAME_BYTES, NULL, 0, &code);
  Blame blame = {.file = file, .commits = vl_allocate(sizeof(CommitTime) * MAX_COMMITS)};
  if (ran.code == VL_OK && code == 0) read_blame(&blame, out);
  free(blame.commits);
  free(out);
}
