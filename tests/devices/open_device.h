/* Opens the device that a test program was asked to run on. */
#ifndef VRAMLAB_TESTS_OPEN_DEVICE_H
#define VRAMLAB_TESTS_OPEN_DEVICE_H

#include "devices/device.h"

/* 0, and the device is open. Otherwise says why on stderr and returns what the program exits with: 77 where
 * the machine does not offer the device, 1 where VRAMLAB_REQUIRE names it or something else is wrong. */
int open_device_or_skip(const char *name, const DeviceOptions *options, Device **device);

#endif
