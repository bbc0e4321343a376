"""`vramlab status`: a suite while it runs, when it has ended, was interrupted or killed; a pid that somebody else has now."""

import json
import os
import signal
import subprocess
import time

from program import ProgramTest, main, strict_json

SLOW = "name: slow\ndefaults: {case: resnet50, steps: 3, data: 'log:%s slow:400'}\naxes: {batch: [1, 2, 3]}\n"


class StatusOfASuite(ProgramTest):
    program = "vramlab_obedient"

    def start(self):
        log = self.folder / "log"
        suite = self.suite(SLOW % log)
        process = subprocess.Popen(self.command("run", suite, "-o", "store", "-q"), cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 20
        while not log.exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return process

    def told(self, code=0):
        return strict_json(self.run_program("status", "store", "--json", code=code).stdout)

    def test_while_it_runs_and_after(self):
        process = self.start()
        told = self.told()
        self.assertEqual((told["state"], told["pid"], told["cells"], told["failed"]), ("running", process.pid, 3, 0))
        self.assertEqual(told["done"] + told["left"], 3)
        self.assertTrue(told["now"].startswith("resnet50"), told)
        self.assertGreater(told["memory_bytes"], 1 << 20)
        self.assertGreaterEqual(told["peak_memory_bytes"], told["memory_bytes"])
        shown = self.run_program("status", "store").stdout
        for part in ["suite slow in store: running", "of 3 done", "resident", "time left"]:
            self.assertIn(part, shown)
        watched = self.run_program("status", "store", "--json", "--watch=1").stdout.splitlines()
        self.assertGreater(len(watched), 1)
        states = [strict_json(line)["state"] for line in watched]
        self.assertEqual((states[0], states[-1]), ("running", "finished"))
        self.assertEqual(process.wait(20), 0)
        told = self.told()
        self.assertEqual((told["state"], told["done"], told["left"], told["now"]), ("finished", 3, 0, None))
        self.assertIsNone(told["memory_bytes"])
        self.assertIn("3 of 3 done", self.run_program("status", "store/results.h5").stdout)

    def test_interrupted_and_resumed(self):
        process = self.start()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(20), 4)
        told = self.told(code=4)
        self.assertEqual((told["state"], told["done"], told["left"]), ("interrupted", 1, 2))
        self.run_program("run", "./suite.yaml", "-o", "store")
        told = self.told()
        self.assertEqual((told["state"], told["cells"], told["done"], told["already_there"]), ("finished", 2, 2, 1))

    def test_killed_and_a_pid_that_was_given_again(self):
        process = self.start()
        process.kill()
        process.wait()
        self.assertEqual(self.told(code=1)["state"], "died")
        shown = self.run_program("status", "store", code=1).stdout
        self.assertIn("died without ending it", shown)
        self.assertIn("at least 0 of 3 done", shown)
        # The pid belongs to a process that lives, and started at another time.
        path = self.folder / "store/status.json"
        state = json.loads(path.read_text(encoding="utf-8"))
        state["pid"] = os.getpid()
        path.write_text(json.dumps(state), encoding="utf-8")
        self.assertEqual(self.told(code=1)["state"], "died")
        state["host"] = "elsewhere"
        path.write_text(json.dumps(state), encoding="utf-8")
        told = self.told()
        self.assertEqual((told["state"], told["told_s_ago"]), ("elsewhere", None))

    def test_failed_cells(self):
        suite = self.suite("name: bad\ndefaults: {case: resnet50, steps: 1}\ncells:\n  - {data: crash}\n  - {data: 'slow:1'}\n")
        self.run_program("run", suite, "-o", "store", code=1)
        told = self.told(code=1)
        self.assertEqual((told["state"], told["done"], told["failed"]), ("finished", 2, 1))

    def test_a_cell_that_could_not_be_stored_is_not_done(self):
        suite = self.suite("name: tiny\ndefaults: {case: resnet50, steps: 1}\naxes: {batch: [1, 2, 3, 4, 5, 6]}\n")
        # A limit on the size of files plays the full disk; in units of 512 bytes.
        limited = f"trap '' XFSZ; ulimit -f 22; '{self.command()[0]}' run {suite} -o store -q"
        done = subprocess.run(["sh", "-c", limited], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        told = self.told(code=1)
        self.assertEqual((told["state"], told["done"]), ("failed", len(self.journal("store")) - 1))

    def test_what_is_no_suite(self):
        self.refuses("status", says="vramlab-results/latest: not a store")
        self.refuses("status", "nowhere", says="nowhere: not a store")
        self.refuses("status", "--watch=0", says="--watch")
        self.refuses("status", "a", "b", says="one store at a time")
        process = self.start()
        process.kill()
        process.wait()
        path = self.folder / "store/status.json"
        for text in ["", "{", "[]", '{"vramlab_status": 2}', '{"vramlab_status": 1, "pid": "x"}']:
            path.write_text(text, encoding="utf-8")
            self.refuses("status", "store", says="not understood")
        path.unlink()
        self.refuses("status", "store", says="no suite has told how far it is")


if __name__ == "__main__":
    main()
