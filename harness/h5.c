#include "harness/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <hdf5_hl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Files by temporary and rename ------------------------------------------------------------------------- */

static Status write_all(int file, const char *content, size_t bytes) {
  while (bytes > 0) {
    ssize_t written = write(file, content, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return vl_error(VL_ENVIRONMENT, "%s", strerror(errno));
    content += written;
    bytes -= (size_t)written;
  }
  return fsync(file) == 0 ? vl_ok() : vl_error(VL_ENVIRONMENT, "%s", strerror(errno));
}

/* A rename is on disk when its directory is. */
static void sync_directory_of(const char *path) {
  char copy[PATH_MAX];
  snprintf(copy, sizeof copy, "%s", path);
  int directory = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  /* Some file systems cannot; the rename is done all the same. */
  (void)fsync(directory);
  close(directory);
}

/* Makes the file appear whole under its name: by rename, or, where it must be new, by a link, which fails
 * when the name is taken. A file system without links has only the first. */
static int put_in_place(const char *temporary, const char *path, bool must_be_new) {
  if (!must_be_new) return rename(temporary, path);
  if (link(temporary, path) == 0) return unlink(temporary);
  bool no_links = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK;
  return no_links && access(path, F_OK) != 0 ? rename(temporary, path) : -1;
}

static Status write_file(const char *path, const void *content, size_t bytes, bool must_be_new) {
  char temporary[PATH_MAX];
  if (snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temporary)
    return vl_error(VL_INVALID, "path too long (%zu characters): %.80s...", strlen(path), path);
  int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return vl_error(VL_ENVIRONMENT, "%s: %s", temporary, strerror(errno));
  Status status = write_all(file, content, bytes);
  if (close(file) != 0 && status.code == VL_OK) status = vl_error(VL_ENVIRONMENT, "%s", strerror(errno));
  if (status.code == VL_OK && put_in_place(temporary, path, must_be_new) != 0)
    status = vl_error(VL_ENVIRONMENT, "%s", strerror(errno));
  if (status.code != VL_OK) {
    unlink(temporary);
    return vl_error(status.code, "%s: %s", path, status.message);
  }
  sync_directory_of(path);
  return vl_ok();
}

Status vl_replace_file(const char *path, const void *content, size_t bytes) {
  return write_file(path, content, bytes, false);
}

Status vl_create_file(const char *path, const void *content, size_t bytes) {
  return write_file(path, content, bytes, true);
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* HDF5 prints its errors unless told not to. */
static void be_quiet(void) { H5Eset_auto2(H5E_DEFAULT, NULL, NULL); }

void vl_h5_start(H5Writer *writer) {
  be_quiet();
  hid_t how = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_fapl_core(how, (size_t)1 << 20, false);
  H5Pset_libver_bounds(how, H5F_LIBVER_EARLIEST, H5F_LIBVER_V110);
  H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  H5Pset_obj_track_times(creation, false);
  /* The name is not used: nothing goes to disk before vl_h5_finish. */
  writer->file = H5Fcreate("in-memory.h5", H5F_ACC_TRUNC, creation, how);
  writer->failed = writer->file < 0;
  H5Pclose(creation);
  H5Pclose(how);
}

Status vl_h5_finish(H5Writer *writer, const char *path) {
  Status status;
  ssize_t bytes = -1;
  void *image = NULL;
  if (!writer->failed && H5Fflush(writer->file, H5F_SCOPE_GLOBAL) >= 0)
    bytes = H5Fget_file_image(writer->file, NULL, 0);
  if (bytes > 0) {
    image = vl_allocate((size_t)bytes);
    bytes = H5Fget_file_image(writer->file, image, (size_t)bytes);
  }
  if (writer->file >= 0) H5Fclose(writer->file);
  if (bytes > 0)
    status = vl_replace_file(path, image, (size_t)bytes);
  else
    status = vl_error(VL_INTERNAL, "%s: HDF5 could not build the file", path);
  free(image);
  return status;
}

static void note(H5Writer *writer, bool succeeded) { writer->failed = writer->failed || !succeeded; }

void vl_h5_text_attribute(H5Writer *writer, hid_t at, const char *name, const char *text) {
  if (writer->failed) return;
  hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  hid_t attribute = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  note(writer, attribute >= 0 && H5Awrite(attribute, type, &text) >= 0);
  if (attribute >= 0) H5Aclose(attribute);
  H5Sclose(space);
  H5Tclose(type);
}

void vl_h5_integer_attribute(H5Writer *writer, hid_t at, const char *name, int64_t value) {
  if (writer->failed) return;
  hid_t space = H5Screate(H5S_SCALAR);
  hid_t attribute = H5Acreate2(at, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
  note(writer, attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0);
  if (attribute >= 0) H5Aclose(attribute);
  H5Sclose(space);
}

/* A dataset of the table's rows; memory is the values' type, stored the file's. */
static hid_t write_dataset(H5Writer *writer, const H5Table *table, const char *name, hid_t stored,
                           hid_t memory, const void *values) {
  if (writer->failed) return -1;
  hid_t space = H5Screate_simple(1, &table->rows, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_obj_track_times(creation, false);
  if (table->rows > 0) {
    /* Chunks of at most 1 MiB. */
    hsize_t most = ((hsize_t)1 << 20) / H5Tget_size(stored), chunk = table->rows;
    if (chunk > most) chunk = most > 0 ? most : 1;
    H5Pset_chunk(creation, 1, &chunk);
    /* The bytes of numbers compress when sorted by place, texts as they stand. */
    if (H5Tget_class(stored) != H5T_STRING) H5Pset_shuffle(creation);
    H5Pset_deflate(creation, 4);
  }
  hid_t dataset = H5Dcreate2(table->group, name, stored, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  note(writer, dataset >= 0);
  if (dataset >= 0 && table->rows > 0)
    note(writer, H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
  H5Pclose(creation);
  H5Sclose(space);
  return dataset;
}

void vl_h5_table_open(H5Writer *writer, hid_t parent, const char *name, const char *dimension, int64_t rows,
                      H5Table *table) {
  *table = (H5Table){.group = -1, .scale = -1, .rows = (hsize_t)rows};
  if (writer->failed) return;
  hid_t creation = H5Pcreate(H5P_GROUP_CREATE);
  H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  H5Pset_obj_track_times(creation, false);
  table->group = H5Gcreate2(parent, name, H5P_DEFAULT, creation, H5P_DEFAULT);
  H5Pclose(creation);
  note(writer, table->group >= 0);
  int64_t *index = vl_allocate((size_t)(rows + 1) * sizeof *index);
  for (int64_t i = 0; i < rows; i++)
    index[i] = i;
  table->scale = write_dataset(writer, table, dimension, H5T_STD_I64LE, H5T_NATIVE_INT64, index);
  free(index);
  if (!writer->failed) note(writer, H5DSset_scale(table->scale, dimension) >= 0);
}

void vl_h5_table_close(H5Table *table) {
  if (table->scale >= 0) H5Dclose(table->scale);
  if (table->group >= 0) H5Gclose(table->group);
}

/* Attributes and the scale of a finished column. */
static void end_column(H5Writer *writer, const H5Table *table, hid_t dataset, H5ColumnText text) {
  if (!writer->failed) note(writer, H5DSattach_scale(dataset, table->scale, 0) >= 0);
  if (text.unit && *text.unit) vl_h5_text_attribute(writer, dataset, "units", text.unit);
  if (text.help && *text.help) vl_h5_text_attribute(writer, dataset, "long_name", text.help);
  if (dataset >= 0) H5Dclose(dataset);
}

void vl_h5_integers(H5Writer *writer, H5Table *table, H5ColumnText text, const int64_t *values) {
  hid_t dataset = write_dataset(writer, table, text.name, H5T_STD_I64LE, H5T_NATIVE_INT64, values);
  /* -1 is "not known"; readers that know the attribute show it as missing. */
  vl_h5_integer_attribute(writer, dataset, "_FillValue", -1);
  end_column(writer, table, dataset, text);
}

void vl_h5_reals(H5Writer *writer, H5Table *table, H5ColumnText text, const double *values) {
  hid_t dataset = write_dataset(writer, table, text.name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, values);
  end_column(writer, table, dataset, text);
}

void vl_h5_flags(H5Writer *writer, H5Table *table, H5ColumnText text, const int8_t *values) {
  hid_t type = H5Tenum_create(H5T_STD_I8LE);
  int8_t value = 0;
  H5Tenum_insert(type, "FALSE", &value);
  value = 1;
  H5Tenum_insert(type, "TRUE", &value);
  end_column(writer, table, write_dataset(writer, table, text.name, type, type, values), text);
  H5Tclose(type);
}

void vl_h5_texts(H5Writer *writer, H5Table *table, H5ColumnText text, const char *const *values) {
  size_t longest = 1;
  for (hsize_t i = 0; i < table->rows; i++)
    if (values[i] && strlen(values[i]) > longest) longest = strlen(values[i]);
  char *block = vl_allocate(longest * ((size_t)table->rows + 1));
  for (hsize_t i = 0; i < table->rows; i++)
    if (values[i]) memcpy(block + i * longest, values[i], strlen(values[i]));
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, longest);
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  end_column(writer, table, write_dataset(writer, table, text.name, type, type, block), text);
  H5Tclose(type);
  free(block);
}

/* ---- Reading ------------------------------------------------------------------------------------------------- */

Status vl_h5_open(const char *path, hid_t *file) {
  be_quiet();
  hid_t how = H5Pcreate(H5P_FILE_ACCESS);
  /* Read into memory at once: no lock, which some network file systems refuse. */
  H5Pset_fapl_core(how, (size_t)1 << 20, false);
  *file = H5Fopen(path, H5F_ACC_RDONLY, how);
  H5Pclose(how);
  if (*file >= 0) return vl_ok();
  bool there = access(path, R_OK) == 0;
  return vl_error(VL_INVALID, "%s: %s", path,
                  there ? "not an HDF5 file, or a truncated one" : strerror(errno));
}

/* Opens a one-dimensional dataset and says how many rows it has. */
static Status open_column(hid_t group, const char *name, hid_t *dataset, int64_t *count) {
  *dataset = H5Dopen2(group, name, H5P_DEFAULT);
  if (*dataset < 0) return vl_error(VL_INVALID, "no column \"%s\"", name);
  hid_t space = H5Dget_space(*dataset);
  *count = H5Sget_simple_extent_ndims(space) == 1 ? H5Sget_simple_extent_npoints(space) : -1;
  H5Sclose(space);
  if (*count >= 0) return vl_ok();
  H5Dclose(*dataset);
  return vl_error(VL_INVALID, "column \"%s\" is not a list", name);
}

Status vl_h5_read_integers(hid_t group, const char *name, int64_t **values, int64_t *count) {
  hid_t dataset;
  VL_TRY(open_column(group, name, &dataset, count));
  *values = vl_allocate((size_t)(*count + 1) * sizeof **values);
  bool read = *count == 0 || H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, *values) >= 0;
  H5Dclose(dataset);
  if (read) return vl_ok();
  free(*values);
  return vl_error(VL_INVALID, "column \"%s\" cannot be read as whole numbers", name);
}

Status vl_h5_read_texts(hid_t group, const char *name, char ***values, int64_t *count) {
  hid_t dataset;
  VL_TRY(open_column(group, name, &dataset, count));
  hid_t stored = H5Dget_type(dataset);
  bool fixed = H5Tget_class(stored) == H5T_STRING && !H5Tis_variable_str(stored);
  size_t length = fixed ? H5Tget_size(stored) + 1 : 1, rows = (size_t)*count;
  *values = vl_allocate(rows * sizeof **values + (rows + 1) * length);
  char *block = (char *)*values + rows * sizeof **values;
  for (size_t i = 0; i < rows; i++)
    (*values)[i] = block + i * length;
  hid_t memory = H5Tcopy(H5T_C_S1);
  H5Tset_size(memory, length);
  H5Tset_cset(memory, H5T_CSET_UTF8);
  bool read = fixed && (rows == 0 || H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, block) >= 0);
  H5Tclose(memory);
  H5Tclose(stored);
  H5Dclose(dataset);
  if (read) return vl_ok();
  free(*values);
  return vl_error(VL_INVALID, "column \"%s\" cannot be read as text", name);
}

Status vl_h5_read_integer_attribute(hid_t at, const char *name, int64_t *value) {
  hid_t attribute = H5Aopen(at, name, H5P_DEFAULT);
  if (attribute < 0) return vl_error(VL_INVALID, "no attribute \"%s\"", name);
  bool read = H5Aread(attribute, H5T_NATIVE_INT64, value) >= 0;
  H5Aclose(attribute);
  return read ? vl_ok() : vl_error(VL_INVALID, "attribute \"%s\" is not a whole number", name);
}

Status vl_h5_read_text_attribute(hid_t at, const char *name, char **value) {
  hid_t attribute = H5Aopen(at, name, H5P_DEFAULT);
  if (attribute < 0) return vl_error(VL_INVALID, "no attribute \"%s\"", name);
  hid_t stored = H5Aget_type(attribute);
  char *text = NULL;
  bool variable = H5Tget_class(stored) == H5T_STRING && H5Tis_variable_str(stored) > 0;
  bool read = variable && H5Aread(attribute, stored, &text) >= 0;
  H5Tclose(stored);
  H5Aclose(attribute);
  if (!read || !text) return vl_error(VL_INVALID, "attribute \"%s\" is not text", name);
  *value = vl_copy_text(text);
  H5free_memory(text);
  return vl_ok();
}
