/* Libraries the program stands on, and the programs around it. */
#include "harness/columns.h"
#include "harness/doctor.h"
#include "harness/report_process.h"

#include <hdf5.h>
#include <hwloc.h>
#include <openssl/crypto.h>
#include <string.h>
#include <yaml.h>

static void found_version(json_t *findings, const char *name, const char *version) {
  vl_finding_add(findings, name, FINDING_OK, version, NULL, json_pack("{ss}", "version", version));
}

static void look_at_libraries(json_t *findings) {
  unsigned major, minor, release;
  char text[64];
  H5get_libversion(&major, &minor, &release);
  snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
  found_version(findings, "HDF5", text);
  found_version(findings, "jansson", jansson_version_str());
  found_version(findings, "libyaml", yaml_get_version_string());
  unsigned version = hwloc_get_api_version();
  snprintf(text, sizeof text, "%u.%u.%u", version >> 16, version >> 8 & 0xFF, version & 0xFF);
  found_version(findings, "hwloc", text);
  found_version(findings, "libcrypto", OpenSSL_version(OPENSSL_VERSION));
  if (vl_nifti_is_there())
    vl_finding_add(findings, "nifticlib", FINDING_OK, "vramlab convert reads NIfTI volumes", NULL, NULL);
  else
    vl_finding_add(findings, "nifticlib", FINDING_MISSING,
                   "this program was built without it: vramlab convert reads no NIfTI volumes",
                   "scripts/setup, or apt-get install libnifti2-dev; then build again", NULL);
}

static void look_at_cpu_device(json_t *findings) {
  Device *device;
  DeviceOptions options = {0};
  DeviceDescription description;
  char text[256];
  Status status = vl_device_open("cpu", &options, &device);
  if (status.code != VL_OK) {
    vl_finding_add(findings, "device cpu", FINDING_MISSING, status.message,
                   "scripts/setup fetches oneDNN; then build again", NULL);
    return;
  }
  device->interface->describe(device, &description);
  snprintf(text, sizeof text, "%s, %s, %d threads", description.library, description.isa,
           description.threads);
  vl_finding_add(findings, "device cpu", FINDING_OK, text, NULL,
                 json_pack("{ss ss si}", "library", description.library, "isa", description.isa, "threads",
                           description.threads));
  vl_device_close(&device);
}

/* A program that tells its version; what it serves and how to install it when it is not there; what to do
 * when it is and does not run, NULL for nothing known. */
typedef struct Tool {
  const char *name, *command, *option;
  FindingState without;
  const char *serves, *remedy, *silent;
} Tool;

/* Something is there that does not tell its version, as Slurm's commands without the cluster's configuration.
 */
static void found_silent(json_t *findings, const Tool *tool, int exit_code, const char *err) {
  char text[512];
  snprintf(text, sizeof text, "%s is here, but %s %s ended with code %d: %.300s", tool->command,
           tool->command, tool->option, exit_code, *err ? err : "it said nothing");
  text[strcspn(text, "\n")] = '\0';
  vl_finding_add(findings, tool->name, FINDING_ATTENTION, text, tool->silent, NULL);
}

static void look_at_tool(json_t *findings, const Tool *tool) {
  const char *const arguments[] = {tool->command, tool->option, NULL};
  char out[512] = "", err[512] = "";
  int exit_code;
  Status status = vl_process_run(arguments, NULL, out, sizeof out, err, sizeof err, &exit_code);
  const char *line = strstr(out, "release ") ? strstr(out, "release ") : out; /* nvcc's fourth line */
  out[(size_t)(line - out) + strcspn(line, "\n")] = '\0';
  if (status.code != VL_OK)
    vl_finding_add(findings, tool->name, tool->without, tool->serves, tool->remedy, NULL);
  else if (exit_code != 0)
    found_silent(findings, tool, exit_code, err);
  else
    found_version(findings, tool->name, line);
}

void vl_doctor_software(json_t *findings) {
  static const Tool tools[] = {
      {"gnuplot", "gnuplot", "--version", FINDING_MISSING, "figures cannot be drawn",
       "apt-get install gnuplot-nox, or scripts/setup", NULL},
      {"git", "git", "--version", FINDING_ABSENT, "builds made without it do not know their commit",
       "apt-get install git", NULL},
      {"nvcc", "nvcc", "--version", FINDING_ABSENT, "device cuda cannot be built here",
       "apt-get install cuda-toolkit-13-0 cudnn9-cuda-13, from NVIDIA's repository (docs/gpu.md)", NULL},
      {"MPI", "mpirun", "--version", FINDING_ABSENT, "nothing here uses it yet",
       "apt-get install openmpi-bin", NULL},
      {"Slurm", "sinfo", "--version", FINDING_ABSENT, "scripts/slurm has nothing to submit to",
       "apt-get install slurm-client, where a cluster runs it",
       "copy the cluster's slurm.conf to /etc/slurm, or name it in SLURM_CONF"},
  };
  look_at_libraries(findings);
  look_at_cpu_device(findings);
  for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
    look_at_tool(findings, &tools[i]);
}
