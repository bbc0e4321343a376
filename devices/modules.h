/* Where modules and installed data lie; private to devices. */
#ifndef VRAMLAB_DEVICES_MODULES_H
#define VRAMLAB_DEVICES_MODULES_H

#include "base/base.h"

enum { VL_MODULE_PATH_BYTES = 4096 };

/* The folder of backend modules: VRAMLAB_MODULES, else the program's own. */
Status vl_module_directory(char *text, size_t size) VL_CHECKED;

#endif
