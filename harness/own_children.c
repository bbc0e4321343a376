/* The processes whose parent we are, orphans we adopted among them. */
#include "harness/child.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static void add(ProcessList *list, pid_t pid) {
  list->pids = vl_reallocate(list->pids, sizeof(pid_t) * (size_t)(list->count + 1));
  list->pids[list->count++] = pid;
}

ProcessList vl_own_children(void) {
  ProcessList list = {.pids = NULL};
  DIR *threads = opendir("/proc/self/task");
  if (!threads) return list;
  for (struct dirent *thread; (thread = readdir(threads));) {
    char path[300];
    int pid;
    if (thread->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/children", thread->d_name);
    FILE *file = fopen(path, "r");
    if (!file) continue;
    while (fscanf(file, "%d", &pid) == 1)
      add(&list, (pid_t)pid);
    fclose(file);
  }
  closedir(threads);
  return list;
}

bool vl_process_is_among(const ProcessList *list, pid_t pid) {
  for (int32_t i = 0; i < list->count; i++)
    if (list->pids[i] == pid) return true;
  return false;
}
