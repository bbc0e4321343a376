#!/usr/bin/env python3
"""The include check finds each kind of wrong include in a made-up repository, and passes a right one."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.dont_write_bytecode = True
from check_includes import check_repository


class CheckIncludes(unittest.TestCase):
    def problems(self, files):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory).resolve()
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_repository(root)[0]

    def test_right_directions_pass(self):
        self.assertEqual([], self.problems({
            "base/base.h": "#include <stdint.h>\n",
            "graph/graph.h": '#include "base/base.h"\n',
            "graph/ops/conv.c": '#include "graph/graph.h"\n#include "internal.h"\n',
            "graph/ops/internal.h": "",
            "devices/device.h": '#include "graph/graph.h"\n#include "memory/memory.h"\n',
            "memory/memory.h": '#include "base/base.h"\n',
            "kernels/cpu/device.c": '#include "devices/device.h"\n#include "dnnl.h"\n',
        }))

    def test_wrong_direction_is_found_with_its_line(self):
        found = self.problems({"base/base.h": "", "engine/engine.h": "",
                               "base/status.c": '#include "base/base.h"\n#include "engine/engine.h"\n'})
        self.assertEqual(1, len(found))
        self.assertTrue(found[0].startswith("base/status.c:2: includes engine/engine.h"), found)

    def test_relative_path_does_not_hide_a_wrong_direction(self):
        found = self.problems({"graph/graph.h": "", "memory/heap.c": '#include "../graph/graph.h"\n'})
        self.assertEqual(1, len(found))

    def test_private_header_of_another_folder_is_found(self):
        found = self.problems({"memory/tracker.h": "", "engine/run.c": '#include "memory/tracker.h"\n'})
        self.assertIn("only memory/memory.h of memory is public", found[0])

    def test_backend_is_reached_through_the_device_interface_alone(self):
        found = self.problems({"kernels/cpu/device.h": "", "engine/run.c": '#include "kernels/cpu/device.h"\n'})
        self.assertIn("reached through devices/device.h", found[0])

    def test_utils_folder_is_found(self):
        self.assertEqual(1, len(self.problems({"base/base.h": "", "harness/utils/text.c": ""})))

    def test_folder_nobody_listed_is_found(self):
        self.assertEqual(1, len(self.problems({"kernels/rocm/device.c": ""})))


if __name__ == "__main__":
    unittest.main()
