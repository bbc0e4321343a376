"""Stores under bad circumstances: two writers, a read-only directory, a full disk, damage, kills between. What was
finished stays, and the message says what is wrong and where."""

import json
import os
import signal
import subprocess
import time

from program import BIN, ProgramTest, main, strict_json

SUITE = """name: tiny
defaults:
  {case: bert-base, device: plan, steps: 2, settings: {layers: 1, hidden: 32, heads: 4, vocabulary: 61, sequence: 16}}
axes: {batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], recipe: [baseline, amp=bf16, checkpoint=1, stack=vramlab]}
"""
READERS = [["report", "STORE"], ["report", "STORE", "--format", "html", "-o", "out.html"], ["claims", "STORE"],
           ["plot", "STORE", "-o", "out"], ["compare", "STORE", "STORE"], ["export", "STORE", "-f", "csv"]]


def readers(store):
    return [[store if word == "STORE" else word for word in command] for command in READERS]


class Writers(ProgramTest):
    program = "vramlab_obedient"

    def start(self, orders):
        log = self.folder / "log"
        suite = self.suite(f"name: slow\ndefaults: {{case: resnet50, data: 'log:{log} {orders}'}}\naxes: {{batch: [1, 2]}}\n")
        process = subprocess.Popen(self.command("run", suite, "-o", "store", "-q"), cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while not log.exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return process

    def test_the_second_is_told_who_the_first_is(self):
        process = self.start("slow:300")
        says = ["store: another process is writing to it", f"process {process.pid} on ", "since 20",
                "run ./suite.yaml -o store -q"]
        self.refuses("run", "./suite.yaml", "-o", "store", says=says, code=3)
        self.run_program("report", "store")  # reading is free
        _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual([line["status"] for line in self.journal("store")[1:]], ["ok", "ok"])
        self.assertFalse((self.folder / "store/writer.json").exists())

    def test_a_killed_one_is_not_in_the_way(self):
        process = self.start("slow:5000")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertTrue((self.folder / "store/writer.json").exists())
        dead, mine = f"results.h5.{process.pid}.tmp", f"results.h5.{os.getpid()}.tmp"
        for name in (dead, mine):
            (self.folder / "store" / name).write_text("unfinished", encoding="utf-8")
        (self.folder / "suite.yaml").write_text((self.folder / "suite.yaml").read_text().replace("slow:5000", ""))
        self.run_program("run", "./suite.yaml", "-o", "store", "-q")
        self.assertFalse((self.folder / "store" / dead).exists())
        self.assertTrue((self.folder / "store" / mine).exists(), "of a process that lives")

    def test_of_many_that_begin_at_once_none_loses_its_cell(self):
        for attempt in range(5):
            store = f"store{attempt}"
            processes = [subprocess.Popen(self.command("plan", "--case", "resnet50", "--batch", batch, "-o", store),
                                          cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                         for batch in range(1, 9)]
            codes = [process.communicate()[1] and process.returncode for process in processes]
            self.assertLessEqual(set(codes), {0, 3})
            kept = sorted(line["micro_batch"] for line in self.journal(store)[1:])
            self.assertEqual(kept, [batch for batch, code in zip(range(1, 9), codes) if code == 0])


class Disks(ProgramTest):
    """In a mount namespace of their own, where the test may mount small file systems."""

    def script(self, text):
        """Runs a shell script with $V the program and $D a file system of 300 KiB; skips where none can be mounted."""
        mounted = ["unshare", "--map-root-user", "--mount", "sh", "-ec", 'mount -t tmpfs -o size=300k tmpfs "$D"\n' + text]
        (self.folder / "disk").mkdir()
        environment = {**os.environ, "V": str(BIN / self.program), "D": str(self.folder / "disk")}
        try:
            able = subprocess.run([*mounted[:5], 'mount -t tmpfs -o size=300k tmpfs "$D"'], env=environment,
                                  capture_output=True, check=False)
        except FileNotFoundError:
            self.skipTest("there is no unshare here")
        if able.returncode != 0:
            self.skipTest("file systems cannot be mounted here")
        self.suite(SUITE)
        done = subprocess.run(mounted, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return done

    def test_full_keeps_what_is_finished_and_goes_on_when_there_is_room(self):
        done = self.script("""
            code=0; "$V" plan ./suite.yaml -o "$D/store" -q || code=$?
            echo "code $code"
            echo "cells $(grep -c cell_key "$D/store/journal.jsonl")"
            tail -c 1 "$D/store/journal.jsonl" | od -An -c
            code=0; "$V" report "$D/store" > screen || code=$?
            echo "report $code"
            if grep "^Report:" screen; then exit 1; fi  # there is none yet
            code=0; "$V" report "$D/store" -f html || code=$?
            echo "html $code"
            test ! -e "$D/store/report.html" -a ! -e "$D/store/results.h5"
            mount -o remount,size=30m "$D"
            "$V" plan ./suite.yaml -o "$D/store" -q > screen
            echo "cells $(grep -c cell_key "$D/store/journal.jsonl")"
            ls "$D/store"
            """)
        words = done.stdout.split()
        first, last = [int(words[i + 1]) for i, word in enumerate(words) if word == "cells"]
        self.assertIn("code 3\n", done.stdout)
        self.assertIn(f"No space left on device; {first} finished cells are intact", done.stderr)
        self.assertTrue(0 < first < 40)
        self.assertIn("\\n", words)  # the part of a line that fitted was taken back
        self.assertIn("report 0\n", done.stdout)
        self.assertIn("html 3\n", done.stdout)
        self.assertEqual(last, 40)
        self.assertTrue({"results.h5", "report.html"} <= set(words))
        self.assertNotIn(".tmp", done.stdout)

    def test_read_only_is_read_and_not_written(self):
        done = self.script("""
            mount -o remount,size=30m "$D"
            "$V" plan ./suite.yaml -o "$D/store" -q -f "batch 1 " > screen
            rm "$D/store/results.h5"
            mount -o remount,ro "$D"
            for what in "plan ./suite.yaml -o $D/store -q" "plan ./suite.yaml -o $D/new -q" "report $D/store -f html" \
                        "plot $D/store"; do
              code=0; "$V" $what || code=$?
              echo "code $code"
            done
            for what in "report $D/store" "claims $D/store" "report $D/store -f html -o out.html" "plot $D/store -o out"; do
              "$V" $what > screen
            done
            test -s out.html
            """)
        self.assertEqual(done.stdout.split(), ["code", "3"] * 4)
        self.assertIn("disk/store/journal.jsonl: Read-only file system", done.stderr)
        self.assertIn("cannot make", done.stderr)
        self.assertIn("results.h5 is not up to date", done.stderr)


class Damage(ProgramTest):
    def setUp(self):
        super().setUp()
        self.run_program("plan", self.suite(SUITE), "-o", "store", "-q", "-f", "batch [12] ")
        self.file = self.folder / "store/journal.jsonl"
        self.whole = self.file.read_bytes()

    def refused(self, says, *commands):
        for command in [*readers("store"), ["plan", "./suite.yaml", "-o", "store"]]:
            before = self.file.read_bytes()
            self.refuses(*command, says=says)
            self.assertEqual(self.file.read_bytes(), before, command)

    def test_in_the_middle_names_the_line(self):
        lines = self.whole.split(b"\n")
        for damage in (b"\xff\xfe garbage", lines[3][:100], b"\0" * 40, b"[1, 2]"):
            self.file.write_bytes(b"\n".join([*lines[:3], damage, *lines[4:]]))
            self.refused("store/journal.jsonl:4: damaged line")
        self.file.write_bytes(b"\n".join([*lines[:3], *lines[4:]]))  # as the message says
        self.run_program("plan", "./suite.yaml", "-o", "store", "-q", "-f", "batch [12] ")
        self.assertEqual(len(self.journal("store")), len(lines) - 1)

    def test_at_the_end_is_what_a_kill_leaves_i6(self):
        self.file.write_bytes(self.whole[:-50])
        for command in readers("store"):
            done = self.run_program(*command)
            self.assertIn("left out an unfinished last line", done.stderr, command)
        done = self.run_program("plan", "./suite.yaml", "-o", "store", "-f", "batch [12] ")
        self.assertIn("7 finished cells are intact", done.stderr)
        self.assertIn("[1/1]", done.stderr)
        self.assertEqual(len({line["cell_key"] for line in self.journal("store")[1:]}), 8)

    def test_of_a_newer_vramlab(self):
        head, rest = self.whole.split(b"\n", 1)
        newer = {**strict_json(head), "vramlab_journal": 1000}
        self.file.write_bytes(json.dumps(newer).encode() + b"\n" + rest)
        self.refused(["store/journal.jsonl: written by a newer vramlab", "schema 1000"])

    def test_truncated_results_are_made_anew_or_refused(self):
        results = self.folder / "store/results.h5"
        content = results.read_bytes()
        for size in (0, 100, len(content) // 2, len(content) - 1):
            results.write_bytes(content[:size])
            for command in readers("store")[:2]:
                self.run_program(*command)
            self.assertEqual(len(results.read_bytes()), len(content))
            (self.folder / "alone.h5").write_bytes(content[:size])
            for command in readers("alone.h5"):
                self.refuses(*command, says="alone.h5")


if __name__ == "__main__":
    main()
