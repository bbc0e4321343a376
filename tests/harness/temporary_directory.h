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

#endif
