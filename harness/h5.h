/* HDF5 as the store uses it: tables of columns with a dimension scale, built in memory and put on disk by
 * temporary file and rename, so that a full disk or a kill never leaves half a file. */
#ifndef VRAMLAB_HARNESS_H5_H
#define VRAMLAB_HARNESS_H5_H

#include "base/base.h"
#include <hdf5.h>

/* A file being written. Calls after a failed one do nothing; vl_h5_finish tells. */
typedef struct H5Writer {
  hid_t file;
  bool failed;
} H5Writer;

void vl_h5_start(H5Writer *writer);
/* Writes the file to path (temporary, fsync, rename, fsync of the directory) and closes. VL_ENVIRONMENT names
 * the path and the system's reason. */
Status vl_h5_finish(H5Writer *writer, const char *path) VL_CHECKED;

void vl_h5_text_attribute(H5Writer *writer, hid_t at, const char *name, const char *text);
void vl_h5_integer_attribute(H5Writer *writer, hid_t at, const char *name, int64_t value);

/* A group whose datasets all have `rows` rows along the dimension scale `dimension`. */
typedef struct H5Table {
  hid_t group, scale;
  hsize_t rows;
} H5Table;
void vl_h5_table_open(H5Writer *writer, hid_t parent, const char *name, const char *dimension, int64_t rows,
                      H5Table *table);
void vl_h5_table_close(H5Table *table);

/* What a column holds beside its values. */
typedef struct H5ColumnText {
  const char *name, *unit, *help;
} H5ColumnText;
void vl_h5_integers(H5Writer *writer, H5Table *table, H5ColumnText text, const int64_t *values);
void vl_h5_reals(H5Writer *writer, H5Table *table, H5ColumnText text, const double *values);
/* h5py's bool: an enumeration of one byte. */
void vl_h5_flags(H5Writer *writer, H5Table *table, H5ColumnText text, const int8_t *values);
/* UTF-8 of fixed length, the longest value's. NULL is written as "". */
void vl_h5_texts(H5Writer *writer, H5Table *table, H5ColumnText text, const char *const *values);

/* ---- Reading ---- */

/* Opens for reading without locks. VL_INVALID: not an HDF5 file, truncated, or not there. */
Status vl_h5_open(const char *path, hid_t *file) VL_CHECKED;
/* A column of a group; count is its number of rows. free() values; texts share one block with their array. */
Status vl_h5_read_integers(hid_t group, const char *name, int64_t **values, int64_t *count) VL_CHECKED;
Status vl_h5_read_texts(hid_t group, const char *name, char ***values, int64_t *count) VL_CHECKED;
Status vl_h5_read_integer_attribute(hid_t at, const char *name, int64_t *value) VL_CHECKED;
Status vl_h5_read_text_attribute(hid_t at, const char *name, char **value) VL_CHECKED;

/* Replaces a file by content: temporary, fsync, rename, fsync of the directory. */
Status vl_replace_file(const char *path, const void *content, size_t bytes) VL_CHECKED;
/* The same for a file that is not there yet. VL_ENVIRONMENT: somebody else made it meanwhile. */
Status vl_create_file(const char *path, const void *content, size_t bytes) VL_CHECKED;

#endif
