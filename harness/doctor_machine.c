/* Processor, memory, huge pages and the limits this process lives under. */
#include "harness/control_group.h"
#include "harness/doctor.h"

#include <hwloc.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static json_t *bytes_or_null(int64_t bytes) { return bytes < 0 ? json_null() : json_integer(bytes); }

/* The first line of a file without its end; "" when it cannot be read. */
static void read_line(const char *path, char *line, size_t size) {
  FILE *file = fopen(path, "r");
  line[0] = '\0';
  if (!file) return;
  if (!fgets(line, (int)size, file)) line[0] = '\0';
  line[strcspn(line, "\n")] = '\0';
  fclose(file);
}

/* ---- Processor --------------------------------------------------------------------------------------------------- */

static int64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache && cache->attr->cache.size > 0 ? (int64_t)cache->attr->cache.size : -1;
}

static void add_cache(const char *name, int64_t bytes, char *text, size_t size) {
  char value[32];
  size_t used = strlen(text);
  if (bytes < 0) return;
  vl_format_bytes(bytes, value, sizeof value);
  snprintf(text + used, size - used, ", %s %s", name, value);
}

/* Threads that this process may run on. */
static int32_t allowed_threads(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                     : (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

/* What hwloc sees of the machine; 0 and -1 where it sees nothing. */
typedef struct Topology {
  int packages, cores, threads, nodes;
  int64_t l1_bytes, l2_bytes, l3_bytes;
} Topology;

static Topology read_topology(void) {
  Topology seen = {.l1_bytes = -1, .l2_bytes = -1, .l3_bytes = -1};
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return seen;
  if (hwloc_topology_load(topology) == 0)
    seen = (Topology){.packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE),
                      .cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE),
                      .threads = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU),
                      .nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE),
                      .l1_bytes = cache_bytes(topology, HWLOC_OBJ_L1CACHE),
                      .l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE),
                      .l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE)};
  hwloc_topology_destroy(topology);
  return seen;
}

/* ", 2 cores" where there are more than `from`. */
static void add_count(const char *name, int count, int from, char *text, size_t size) {
  size_t used = strlen(text);
  if (count > from) snprintf(text + used, size - used, ", %d %s", count, name);
}

static void look_at_processor(json_t *findings) {
  char model[128], text[512];
  Topology seen = read_topology();
  int32_t allowed = allowed_threads();
  int threads = seen.threads > 0 ? seen.threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
  vl_machine_cpu_model(model, sizeof model);
  snprintf(text, sizeof text, "%s", model);
  add_count("cores", seen.cores, 0, text, sizeof text);
  add_count("threads", threads, 0, text, sizeof text);
  if (allowed < threads)
    snprintf(text + strlen(text), sizeof text - strlen(text), " (%d of them for this process)", allowed);
  add_count("packages", seen.packages, 1, text, sizeof text);
  add_count("NUMA nodes", seen.nodes, 1, text, sizeof text);
  add_cache("L1", seen.l1_bytes, text, sizeof text);
  add_cache("L2", seen.l2_bytes, text, sizeof text);
  add_cache("L3", seen.l3_bytes, text, sizeof text);
  vl_finding_add(findings, "processor", FINDING_OK, text, NULL,
                 json_pack("{ss si si si si si so so so}", "model", model, "packages", seen.packages, "cores",
                           seen.cores, "threads", threads, "allowed_threads", allowed, "numa_nodes",
                           seen.nodes, "l1_bytes", bytes_or_null(seen.l1_bytes), "l2_bytes",
                           bytes_or_null(seen.l2_bytes), "l3_bytes", bytes_or_null(seen.l3_bytes)));
}

/* What decides how fast kernels are: of the flags that /proc/cpuinfo lists. */
static void look_at_instructions(json_t *findings) {
  static const char *const telling[] = {"avx2",        "fma",      "avx512f",  "avx512_vnni", "avx512_bf16",
                                        "avx512_fp16", "amx_bf16", "amx_int8", "asimd",       "sve",
                                        "sve2",        "bf16",     "i8mm"};
  FILE *file = fopen("/proc/cpuinfo", "r");
  char *line = NULL, text[256] = "";
  size_t room = 0;
  json_t *list = json_array();
  while (file && json_array_size(list) == 0 && getline(&line, &room, file) > 0) {
    if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0) continue;
    char *save = NULL, *colon = strchr(line, ':');
    for (char *flag = strtok_r(colon ? colon + 1 : line, " \t\n", &save); flag;
         flag = strtok_r(NULL, " \t\n", &save))
      for (size_t i = 0; i < sizeof telling / sizeof *telling; i++) {
        if (strcmp(flag, telling[i]) != 0) continue;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "", flag);
        json_array_append_new(list, json_string(flag));
      }
  }
  free(line);
  if (file) fclose(file);
  vl_finding_add(findings, "instructions", FINDING_OK, *text ? text : "none that kernels are made for", NULL,
                 json_pack("{so}", "extensions", list));
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

static void look_at_memory(json_t *findings) {
  char total_text[32] = "unknown", available_text[32] = "unknown", text[160];
  int64_t total = vl_machine_total_bytes(), available = vl_machine_available_bytes();
  if (total >= 0) vl_format_bytes(total, total_text, sizeof total_text);
  if (available >= 0) vl_format_bytes(available, available_text, sizeof available_text);
  snprintf(text, sizeof text, "%s, %s of it available", total_text, available_text);
  vl_finding_add(
      findings, "memory", FINDING_OK, text, NULL,
      json_pack("{so so}", "total_bytes", bytes_or_null(total), "available_bytes", bytes_or_null(available)));
}

static void look_at_limits(json_t *findings) {
  ControlGroup group;
  char text[256] = "", limit[32];
  vl_control_group_read("", &group);
  if (group.memory_limit_bytes >= 0) {
    int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    char whole[32];
    vl_format_bytes(group.memory_limit_bytes, limit, sizeof limit);
    vl_format_bytes(machine, whole, sizeof whole);
    snprintf(text, sizeof text, "memory %s of the machine's %s", limit, whole);
  }
  if (!isnan(group.processors))
    snprintf(text + strlen(text), sizeof text - strlen(text), "%stime of %.4g processors", *text ? ", " : "",
             group.processors);
  bool fewer = !isnan(group.processors) && group.processors < allowed_threads();
  char remedy[128];
  snprintf(remedy, sizeof remedy,
           "more threads than processors' time wait for each other: OMP_NUM_THREADS=%d",
           fewer && group.processors >= 1 ? (int)group.processors : 1);
  vl_finding_add(findings, "limits", fewer ? FINDING_ATTENTION : FINDING_OK,
                 *text ? text : "none by a control group", fewer ? remedy : NULL,
                 json_pack("{si so so}", "version", group.version, "memory_limit_bytes",
                           bytes_or_null(group.memory_limit_bytes), "processors",
                           isnan(group.processors) ? json_null() : json_real(group.processors)));
}

/* Blocks of the heap ask for huge pages (madvise). */
static void look_at_huge_pages(json_t *findings) {
  char line[128], chosen[32] = "unknown", text[160], reserved[64];
  read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
  char *from = strchr(line, '['), *to = from ? strchr(from, ']') : NULL;
  if (to) snprintf(chosen, sizeof chosen, "%.*s", (int)(to - from - 1), from + 1);
  read_line("/proc/sys/vm/nr_hugepages", reserved, sizeof reserved);
  snprintf(text, sizeof text, "transparent: %s; %s reserved", chosen, *reserved ? reserved : "unknown");
  bool never = strcmp(chosen, "never") == 0 || strcmp(chosen, "unknown") == 0;
  vl_finding_add(
      findings, "huge pages", never ? FINDING_ATTENTION : FINDING_OK, text,
      never ? "steps on cpu are slower; as root: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"
            : NULL,
      json_pack("{ss sI}", "transparent", chosen, "reserved_pages", (json_int_t)atoll(reserved)));
}

/* Under strict accounting what is reserved and not yet touched counts. */
static void look_at_overcommit(json_t *findings) {
  static const char *const meanings[] = {"by a rule of thumb", "always",
                                         "never: reserved memory counts as used"};
  char line[16], text[96];
  read_line("/proc/sys/vm/overcommit_memory", line, sizeof line);
  int mode = *line ? atoi(line) : -1;
  if (mode < 0 || mode > 2) return;
  snprintf(text, sizeof text, "%d, %s", mode, meanings[mode]);
  vl_finding_add(findings, "overcommit", mode == 2 ? FINDING_ATTENTION : FINDING_OK, text,
                 mode == 2 ? "cells may fail before memory is full; as root: sysctl vm.overcommit_memory=0"
                           : NULL,
                 json_pack("{si}", "mode", mode));
}

void vl_doctor_machine(json_t *findings) {
  char text[160];
  struct utsname system;
  look_at_processor(findings);
  look_at_instructions(findings);
  look_at_memory(findings);
  look_at_limits(findings);
  look_at_huge_pages(findings);
  look_at_overcommit(findings);
  if (uname(&system) != 0) return;
  snprintf(text, sizeof text, "%.60s %.60s", system.sysname, system.release);
  vl_finding_add(findings, "system", FINDING_OK, text, NULL, NULL);
}
