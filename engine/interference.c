/* Who else used the machine while steps were measured: what the kernel counts (proc(5), getrusage(2)). */
#include "engine/cell.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const int64_t LEAST_NS = 500000000;

/* Seconds of all processors since the system started: all, used by anybody, and taken by the hypervisor. */
static bool read_processors(double *all_s, double *used_s, double *stolen_s) {
  FILE *file = fopen("/proc/stat", "r");
  char line[512] = "";
  if (!file) return false;
  bool read = fgets(line, sizeof line, file) != NULL && strncmp(line, "cpu ", 4) == 0;
  fclose(file);
  if (!read) return false;
  double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK), ticks[8] = {0};
  char *at = line + 4;
  for (int i = 0; i < 8; i++)
    ticks[i] = (double)strtoll(at, &at, 10);
  enum { USER = 0, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL };
  *used_s = (ticks[USER] + ticks[NICE] + ticks[SYSTEM] + ticks[IRQ] + ticks[SOFTIRQ]) * tick_s;
  *stolen_s = ticks[STEAL] * tick_s;
  *all_s = *used_s + *stolen_s + (ticks[IDLE] + ticks[IOWAIT]) * tick_s;
  return true;
}

static double seconds(struct timeval time) { return (double)time.tv_sec + (double)time.tv_usec * 1e-6; }

Interference engine_interference_begin(void) {
  struct rusage usage;
  Interference now = {.at_ns = vl_monotonic_ns()};
  now.known = read_processors(&now.all_s, &now.used_s, &now.stolen_s) && getrusage(RUSAGE_SELF, &usage) == 0;
  if (!now.known) return now;
  now.own_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  now.involuntary_switches = usage.ru_nivcsw;
  return now;
}

void engine_interference_end(const Interference *begun, CellResult *result) {
  Interference now = engine_interference_begin();
  double load;
  if (getloadavg(&load, 1) == 1) result->load_average = load;
  if (!begun->known || !now.known) return;
  result->involuntary_switches = now.involuntary_switches - begun->involuntary_switches;
  double all_s = now.all_s - begun->all_s;
  if (now.at_ns - begun->at_ns < LEAST_NS || !(all_s > 0)) return;
  double others_s = now.used_s - begun->used_s - (now.own_s - begun->own_s);
  result->steal_share = (now.stolen_s - begun->stolen_s) / all_s;
  result->other_cpu_share = others_s > 0 ? others_s / all_s : 0;
}
