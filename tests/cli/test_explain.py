"""`vramlab explain`: a file, standard input, a whole log; the next command that it names is one that runs."""

import shlex
import subprocess

from program import ProgramTest, main, strict_json

SHORTAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB of which "
    "512.00 MiB is free. Process 4021 has 4.00 GiB memory in use. Including non-PyTorch memory, this process has 10.50 GiB "
    "memory in use. Of the allocated memory 9.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
PIECES = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 8.55 GiB already "
    "allocated; 4.69 MiB free; 9.70 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF")


class Explain(ProgramTest):
    def explain(self, text, *arguments, code=0):
        done = subprocess.run(
            self.command("explain", *arguments), cwd=self.folder, input=text, capture_output=True, text=True, timeout=60,
            check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_a_shortage(self):
        shown = self.explain(SHORTAGE).stdout
        for part in ["Verdict: shortage", "10.500 GiB", "process 4021", "at least 512.00 MiB",
                     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (returns 1.000 GiB at most: not enough here)",
                     "4.000 GiB in 1 process", "--capacity 10752MiB"]:
            self.assertIn(part, " ".join(shown.split()))

    def test_fragmentation(self):
        told = strict_json(self.explain(PIECES, "--json").stdout)
        self.assertEqual(told["verdict"], "fragmentation")
        self.assertEqual(told["from_model_bytes"], 0)
        self.assertEqual(told["setting"], "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:32")
        self.assertIsNone(told["this_process_bytes"])
        self.assertEqual(told["processes"], [])
        self.assertTrue(told["command"].startswith("vramlab replay trace.jsonl --capacity 9937MiB"), told["command"])

    def test_the_next_command_runs(self):
        told = strict_json(self.explain(SHORTAGE, "--json", "--case", "resnet50", "--global-batch", "16").stdout)
        words = shlex.split(told["command"])
        self.assertEqual(words[:4], ["vramlab", "fit", "--case", "resnet50"])
        self.run_program(*words[1:], "--json")

    def test_a_file_with_a_log(self):
        log = self.folder / "slurm.out"
        log.write_bytes(b"\xff\xfe\x00 epoch 3\n" * 1000 + b"\x1b[31m" + PIECES.encode() + b"\x1b[0m\n" + SHORTAGE.encode())
        told = strict_json(self.run_program("explain", log, "--json").stdout)
        self.assertEqual((told["line"], told["messages"], told["verdict"]), (1001, 2, "fragmentation"))
        told = strict_json(self.run_program("explain", log, "--json", "--message", "2").stdout)
        self.assertEqual(told["verdict"], "shortage")
        self.assertIn("2 different messages", self.run_program("explain", log).stdout)
        self.refuses("explain", log, "--message", "3", says="there are 2 different messages")

    def test_what_is_absent_is_said(self):
        shown = self.explain("RuntimeError: CUDA error: out of memory\n").stdout
        self.assertIn("not in the message", shown)
        self.assertIn("Verdict: unknown", shown)
        self.assertIn("CAPACITY", shown)
        shown = " ".join(self.explain(PIECES[:PIECES.index(" already")]).stdout.split())
        self.assertIn("cut off after total capacity", shown)
        self.assertIn("Verdict: unknown", shown)

    def test_bad_usage(self):
        done = self.explain("all went well\n", code=2)
        self.assertEqual(done.stdout, "")
        self.assertIn("no out-of-memory message in standard input; looked for", done.stderr)
        self.assertTrue(done.stderr.endswith('"OOM when allocating tensor"\n'), "said to its end: " + done.stderr)
        self.refuses("explain", "nowhere.log", says="nowhere.log: No such file")
        self.refuses("explain", ".", says="Is a directory")
        self.refuses("explain", "a", "b", says="one text at a time")
        self.refuses("explain", "--case", "resnet51", says="no case is named")
        self.refuses("explain", "--global-batch", "0", says="--global-batch")


if __name__ == "__main__":
    main()
