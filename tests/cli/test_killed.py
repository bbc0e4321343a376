"""A suite of planned cells killed twenty times at random moments and resumed: exactly its rows, each as of a calm run.

The number of cells may follow the folder of programs; without it 200.
"""

import os
import random
import signal
import subprocess
import sys
import time
import unittest

CELLS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 200

from program import ProgramTest, main, strict_json  # noqa: E402  (reads the first argument)

KILLS = 20
RECIPES = ["baseline", "amp=bf16", "checkpoint=1", "stack=vramlab", "allocator=planned"]
SUITE = """name: killed
defaults:
  {case: bert-base, device: plan, steps: 2, settings: {layers: 1, hidden: 32, heads: 4, vocabulary: 61, sequence: 16}}
axes: {batch: %s, recipe: [%s]}
"""
# When it ran and how long that took; everything else of a plan follows from what was asked.
OF_THE_RUN = ("created_utc", "build_s")


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]
    except OSError:
        return []


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids):
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {pids} some still run")
        time.sleep(0.005)


class Killed(ProgramTest):
    def setUp(self):
        super().setUp()
        seed = random.randrange(1 << 32)
        self.random = random.Random(seed)
        print(f"seed {seed}", file=sys.stderr)
        self.suite(SUITE % (list(range(1, CELLS // len(RECIPES) + 1)), ", ".join(RECIPES)))

    def start(self):
        return subprocess.Popen(self.command("plan", "./suite.yaml", "-o", "store", "-q", "--failed"), cwd=self.folder,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def kill_at_random(self, manner, longest_s):
        """Starts the suite and ends it: its whole group, the parent alone, or the worker and some time later the parent."""
        process = self.start()
        time.sleep(self.random.uniform(0, longest_s))
        workers = children_of(process.pid)
        if manner == "worker":
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            time.sleep(self.random.uniform(0, longest_s / 4))
            workers += children_of(process.pid)
        if manner == "group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        wait_until_gone(workers)

    def rows(self, store):
        """The latest line of each key; only the last line may be torn."""
        path = self.folder / store / "journal.jsonl"
        if not path.exists():
            return {}
        whole, _ = path.read_bytes().rsplit(b"\n", 1)
        records = [strict_json(line) for line in whole.split(b"\n")][1:]
        return {record["cell_key"]: record for record in records}

    def calm(self):
        start = time.monotonic()
        self.run_program("plan", "./suite.yaml", "-o", "calm", "-q")
        return self.rows("calm"), time.monotonic() - start

    def test_every_row_once_and_right_i6_i10(self):
        calm, elapsed_s = self.calm()
        self.assertEqual(len(calm), CELLS)
        before = {}
        for kill in range(KILLS):
            self.kill_at_random(("group", "parent", "worker")[kill % 3], 0.3 * elapsed_s)
            now = self.rows("store")
            self.assertLessEqual(before.keys(), now.keys(), "a finished cell was lost")
            before = now
        self.run_program("plan", "./suite.yaml", "-o", "store", "-q", "--failed")
        rows = self.rows("store")
        self.assertEqual(len(rows), CELLS)
        for key, right in calm.items():
            ours = rows[key]
            self.assertEqual(ours["status"], "ok")
            self.assertEqual({name: value for name, value in ours.items() if name not in OF_THE_RUN},
                             {name: value for name, value in right.items() if name not in OF_THE_RUN})
        self.check_files()

    def check_files(self):
        """results.h5 by itself has them all, and no kill left anything behind."""
        (self.folder / "store/results.h5").rename(self.folder / "alone.h5")
        self.assertIn("%d records" % CELLS, self.run_program("report", "alone.h5", "--format", "md", "-o", "-").stdout)
        left = [path.name for path in (self.folder / "store").rglob("*.tmp")]
        self.assertEqual(left, [])


if __name__ == "__main__":
    main()
