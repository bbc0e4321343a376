"""Ctrl-C, a second one, SIGKILL of the parent: what was finished is there, nothing of the rest runs on."""

import os
import signal
import subprocess
import time

from program import ProgramTest, main

SLOW = "name: slow\ndefaults: {case: resnet50, steps: 3, data: '%s'}\naxes: {batch: [1, 2, 3]}\n"


def is_running(pid):
    """Zombies that nobody has reaped yet have stopped too."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Interrupts(ProgramTest):
    program = "vramlab_obedient"

    def start(self, orders):
        """Starts a suite and returns once its first cell runs."""
        log = self.folder / "log"
        suite = self.suite(SLOW % f"log:{log} {orders}")
        process = subprocess.Popen(self.command("run", suite, "-o", "store"), cwd=self.folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        self.wait_for(log.exists)
        return process

    def wait_for(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline, "it did not happen within 20 s")
            time.sleep(0.01)

    def finish(self, process, code):
        _, errors = process.communicate(timeout=20)
        self.assertEqual(process.returncode, code, errors)
        return errors

    def test_first_finishes_the_cell_and_the_suite_can_be_resumed(self):
        process = self.start("slow:300")
        process.send_signal(signal.SIGINT)
        errors = self.finish(process, 4)
        self.assertIn("to go on: vramlab run ./suite.yaml -o store\n", errors)
        self.assertEqual([line["status"] for line in self.journal("store")[1:]], ["ok"])
        self.assertTrue((self.folder / "store/results.h5").exists())
        self.run_program("run", "./suite.yaml", "-o", "store")
        self.assertEqual([line["micro_batch"] for line in self.journal("store")[1:]], [1, 2, 3])

    def test_second_abandons_it_and_all_it_started_i16(self):
        child = self.folder / "child"
        process = self.start(f"stubborn:{child}")
        self.wait_for(child.exists)
        self.wait_for(lambda: child.read_text(encoding="ascii").endswith("\n"))
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        self.finish(process, 4)
        self.assertFalse(is_running(int(child.read_text(encoding="ascii"))))
        self.assertEqual(len(self.journal("store")), 1)

    def test_killed_parent_leaves_a_good_store_and_no_worker_i6(self):
        process = self.start("slow:100")
        self.wait_for(lambda: len((self.folder / "log").read_text(encoding="ascii").splitlines()) == 2)
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True,
                                  check=False).stdout.split()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        self.assertTrue(children)
        self.wait_for(lambda: not any(is_running(pid) for pid in children))
        done = self.run_program("run", "./suite.yaml", "-o", "store")
        self.assertIn("[1/2]", done.stderr)
        self.assertEqual([line["micro_batch"] for line in self.journal("store")[1:]], [1, 2, 3])


if __name__ == "__main__":
    main()
