/* vramlab doctor: what this machine offers, what is missing and how to install it. */
#include "harness/columns.h"
#include "harness/machine.h"
#include "harness/options.h"
#include "harness/report_process.h"

#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <yaml.h>

enum { KEY_JSON = 0x200, KEY_RESOURCES };

static const struct argp_option options_table[] = {
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 0},
    {"ctest-resources", KEY_RESOURCES, NULL, 0, "print the GPUs as a resource file for ctest", 0},
    {0}};

typedef struct DoctorCommand {
  bool json, resources;
} DoctorCommand;

static error_t parse_option(int key, char *text, struct argp_state *state) {
  DoctorCommand *command = state->input;
  switch (key) {
  case KEY_JSON: command->json = true; return 0;
  case KEY_RESOURCES: command->resources = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument: %s", text); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp doctor_argp = {
    .options = options_table,
    .parser = parse_option,
    .doc =
        "Says what this machine offers, what is missing, and how to install it. Exits 0 whatever it finds."};

/* ---- Findings --------------------------------------------------------------------------------------------------- */

static void found(json_t *findings, const char *name, const char *detail) {
  json_array_append_new(findings,
                        json_pack("{ss ss so}", "name", name, "state", "ok", "detail", vl_json_text(detail)));
}

static void missing(json_t *findings, const char *name, const char *detail, const char *remedy) {
  json_array_append_new(findings, json_pack("{ss ss so ss}", "name", name, "state", "missing", "detail",
                                            vl_json_text(detail), "remedy", remedy));
}

static void look_at_program(json_t *findings) {
  char text[256];
  BuildFacts facts = vl_build_facts();
  snprintf(text, sizeof text, "%s%s%.12s%s", facts.version, *facts.git_commit ? ", commit " : "",
           facts.git_commit, facts.git_dirty ? " with changes" : "");
  found(findings, "vramlab", text);
}

static void look_at_machine(json_t *findings) {
  char model[128], total[32] = "unknown", available[32] = "unknown", text[320];
  struct utsname system;
  vl_machine_cpu_model(model, sizeof model);
  snprintf(text, sizeof text, "%s, %ld threads", model, sysconf(_SC_NPROCESSORS_ONLN));
  found(findings, "processor", text);
  int64_t bytes = vl_machine_total_bytes();
  if (bytes >= 0) vl_format_bytes(bytes, total, sizeof total);
  bytes = vl_machine_available_bytes();
  if (bytes >= 0) vl_format_bytes(bytes, available, sizeof available);
  snprintf(text, sizeof text, "%s, %s of it available", total, available);
  found(findings, "memory", text);
  if (uname(&system) != 0) return;
  snprintf(text, sizeof text, "%.60s %.60s", system.sysname, system.release);
  found(findings, "system", text);
}

static void look_at_libraries(json_t *findings) {
  unsigned major, minor, release;
  char text[64];
  H5get_libversion(&major, &minor, &release);
  snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
  found(findings, "HDF5", text);
  found(findings, "jansson", jansson_version_str());
  found(findings, "libyaml", yaml_get_version_string());
  if (vl_nifti_is_there())
    found(findings, "nifticlib", "vramlab convert reads NIfTI volumes");
  else
    missing(findings, "nifticlib",
            "this program was built without it: vramlab convert reads no NIfTI volumes",
            "scripts/setup, or apt-get install libnifti2-dev; then build again");
}

static void look_at_cpu_device(json_t *findings) {
  Device *device;
  DeviceOptions options = {0};
  Status status = vl_device_open("cpu", &options, &device);
  if (status.code != VL_OK) {
    missing(findings, "device cpu", status.message, "scripts/setup fetches oneDNN; then build again");
    return;
  }
  DeviceDescription description;
  char text[256];
  device->interface->describe(device, &description);
  snprintf(text, sizeof text, "%s, %s, %d threads", description.library, description.isa,
           description.threads);
  found(findings, "device cpu", text);
  vl_device_close(&device);
}

static void look_at_gnuplot(json_t *findings) {
  static const char *const arguments[] = {"gnuplot", "--version", NULL};
  char out[128] = "";
  int exit_code;
  Status status = vl_process_run(arguments, NULL, out, sizeof out, NULL, 0, &exit_code);
  out[strcspn(out, "\n")] = '\0';
  if (status.code == VL_OK && exit_code == 0)
    found(findings, "gnuplot", out);
  else
    missing(findings, "gnuplot", "figures cannot be drawn", "apt-get install gnuplot-nox, or scripts/setup");
}

static void look_at_gpu(json_t *findings, const GpuFacts *gpu) {
  char text[320], memory[32] = "unknown";
  if (!gpu->driver_library) {
    missing(findings, "GPU", "no libcuda.so.1: no NVIDIA driver on this machine",
            "install the NVIDIA driver; device plan predicts for cards without one (vramlab list profiles)");
    return;
  }
  int major = gpu->cuda_version / 1000, minor = gpu->cuda_version % 1000 / 10;
  if (gpu->count == 0) {
    snprintf(text, sizeof text, "the driver (CUDA %d.%d) offers no device (code %d%s)", major, minor,
             gpu->result, gpu->result == 100 ? ", no device" : "");
    missing(findings, "GPU", text, "look at nvidia-smi and CUDA_VISIBLE_DEVICES");
    return;
  }
  if (gpu->memory_bytes >= 0) vl_format_bytes(gpu->memory_bytes, memory, sizeof memory);
  snprintf(text, sizeof text, "%d x %s, %s, driver %s, CUDA %d.%d", gpu->count, gpu->name, memory,
           *gpu->driver_version ? gpu->driver_version : "unknown", major, minor);
  found(findings, "GPU", text);
}

/* What the card's management library reads off it now, whoever works on it. */
static void look_at_card(json_t *findings, Device *device) {
  DeviceReadings readings = vl_no_readings();
  char used[32], total[32], clock[32] = "", heat[32] = "", text[256];
  if (device->interface->read) device->interface->read(device, &readings);
  if (readings.card_total_bytes < 0 || readings.card_used_bytes < 0) {
    missing(findings, "card",
            "libnvidia-ml.so.1 does not answer: memory of other processes, clocks and heat are not known",
            "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility");
    return;
  }
  vl_format_bytes(readings.card_used_bytes, used, sizeof used);
  vl_format_bytes(readings.card_total_bytes, total, sizeof total);
  if (readings.clock_mhz >= 0) snprintf(clock, sizeof clock, ", %d MHz", readings.clock_mhz);
  if (readings.temperature_c >= 0) snprintf(heat, sizeof heat, ", %d degrees", readings.temperature_c);
  snprintf(text, sizeof text, "%s of %s in use%s%s%s%s", used, total, clock, heat,
           readings.throttled == 1 ? ", slowed down by power or heat" : "",
           readings.mig == 1 ? ", cut into instances (MIG)" : "");
  found(findings, "card", text);
}

static void look_at_cuda_device(json_t *findings, const GpuFacts *gpu) {
  Device *device;
  DeviceOptions options = {0};
  Status status = vl_device_open("cuda", &options, &device);
  if (status.code != VL_OK) {
    missing(findings, "device cuda", status.message,
            gpu->count > 0 ? "build with CUDA 13 and cuDNN 9: cmake --preset cuda" : "needs a GPU");
    return;
  }
  DeviceDescription description;
  device->interface->describe(device, &description);
  found(findings, "device cuda", description.library);
  look_at_card(findings, device);
  vl_device_close(&device);
}

/* ---- Printing ----------------------------------------------------------------------------------------------------- */

static void print_findings(const json_t *findings) {
  for (size_t i = 0; i < json_array_size(findings); i++) {
    const json_t *finding = json_array_get(findings, i);
    bool ok = strcmp(vl_record_text(finding, "state"), "ok") == 0;
    printf("%-12s %s%s\n", vl_record_text(finding, "name"),
           ok ? "" : "missing: ", vl_record_text(finding, "detail"));
    const char *remedy = vl_record_text(finding, "remedy");
    if (remedy) printf("%-12s %s\n", "", remedy);
  }
}

static void print_resources(const GpuFacts *gpu) {
  json_t *list = json_array();
  for (int32_t i = 0; i < gpu->count; i++) {
    char id[16];
    snprintf(id, sizeof id, "%d", i);
    json_array_append_new(list, json_pack("{ss si}", "id", id, "slots", 1));
  }
  json_t *file = json_pack("{s{si si} s[{so}]}", "version", "major", 1, "minor", 0, "local", "gpus", list);
  char *text = json_dumps(file, JSON_INDENT(2));
  puts(text);
  free(text);
  json_decref(file);
}

int vl_command_doctor(int argc, char **argv) {
  DoctorCommand command = {0};
  GpuFacts gpu;
  vl_command_parse(&doctor_argp, argc, argv, &command);
  vl_machine_gpu(&gpu);
  if (command.resources) {
    print_resources(&gpu);
    return 0;
  }
  json_t *findings = json_array();
  look_at_program(findings);
  look_at_machine(findings);
  look_at_libraries(findings);
  look_at_cpu_device(findings);
  look_at_gnuplot(findings);
  look_at_gpu(findings, &gpu);
  look_at_cuda_device(findings, &gpu);
  if (command.json) {
    char *text = json_dumps(findings, JSON_INDENT(2));
    puts(text);
    free(text);
  } else {
    print_findings(findings);
  }
  json_decref(findings);
  return 0;
}
