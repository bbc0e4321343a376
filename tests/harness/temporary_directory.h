/* A directory for one test, removed with everything in it. */
#ifndef VRAMLAB_TESTS_TEMPORARY_DIRECTORY_H
#define VRAMLAB_TESTS_TEMPORARY_DIRECTORY_H

/* A new directory; free() the name after remove_temporary_directory. */
char *make_temporary_directory(void);
void remove_temporary_directory(const char *directory);
/* directory/name; free() it. */
char *path_in(const char *directory, const char *name);
/* Whole content of a file; free() it. NULL: not there. */
char *read_whole_file(const char *path);
void write_whole_file(const char *path, const char *content);
/* Writes directory/name with the directories that the name needs, as in "sys/fs/memory.max". */
void write_file_in(const char *directory, const char *name, const char *content);

/* Set-up and tear-down of a test whose state is such a directory. */
int set_up_directory(void **state);
int tear_down_directory(void **state);

#endif
