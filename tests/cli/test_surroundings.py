"""Nothing that surrounds the program changes its numbers or loses them: locale, time zone, umask, an empty environment, no
terminal, standard streams that are closed, full or broken, and odd places for a store."""

import csv
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from datetime import datetime, timedelta, timezone

from program import ProgramTest, main, strict_json

TINY = ["--case", "bert-base", "--set", "layers=1", "--set", "hidden=32", "--set", "heads=4", "--set", "vocabulary=61",
        "--set", "sequence=16"]
SUITE = """name: tiny
defaults:
  {case: bert-base, device: plan, steps: 2, settings: {layers: 1, hidden: 32, heads: 4, vocabulary: 61, sequence: 16}}
axes: {batch: [1, 2, 8, 32, 64, 96, 128, 192], recipe: [baseline, amp=bf16]}
"""
OF_THE_RUN = ("created_utc", "build_s")
AT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Locales(ProgramTest):
    """Outputs in C, in a locale with decimal commas, and in one that is not installed."""

    def outputs(self, **environment):
        """Everything the program prints and writes about one store, by name."""
        self.run_program("plan", "./suite.yaml", "-o", "store", "-q", **environment)
        texts = {"report md": ["report", "store", "-f", "md", "-o", "-"], "claims": ["claims", "store"],
                 "claims md": ["claims", "store", "--format", "md"], "compare": ["compare", "store", "store", "--all"],
                 "csv": ["export", "store", "-f", "csv"], "jsonl": ["export", "store", "-f", "jsonl"],
                 "screen": ["report", "store"], "graph": ["graph", *TINY], "list": ["list"],
                 "max-batch": ["max-batch", *TINY, "--capacity", "1.5GiB"], "fit": ["fit", *TINY, "--global-batch", "8",
                                                                                 "--capacity", "0.25GiB"]}
        out = {name: AT.sub("AT", self.run_program(*command, **environment).stdout) for name, command in texts.items()}
        out["csv"] = [{name: value for name, value in row.items() if name not in OF_THE_RUN}
                      for row in csv.DictReader(io.StringIO(out["csv"]))]
        out["jsonl"] = re.sub('"build_s":[^,]*,', "", out["jsonl"])
        self.run_program("plot", "store", "-o", "figures", "-f", "svg", **environment)
        for path in sorted((self.folder / "figures").iterdir()):
            if path.suffix in (".dat", ".gp", ".svg"):
                out[path.name] = path.read_text(encoding="utf-8")
        rows = self.journal("store")[1:]
        out["records"] = [{name: value for name, value in row.items() if name not in OF_THE_RUN} for row in rows]
        return out

    def comma_locale(self):
        """The folder of a locale with decimal commas."""
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(self.folder / "de_DE.UTF-8")],
                              capture_output=True, check=False) if os.path.exists("/usr/share/i18n/locales/de_DE") else None
        if made is None or not (self.folder / "de_DE.UTF-8").exists():
            self.skipTest("no locale with decimal commas can be made here")
        comma = subprocess.run(["printf", "%.1f", "1,5"], env={"PATH": os.environ["PATH"], "LOCPATH": str(self.folder),
                                                              "LC_ALL": "de_DE.UTF-8"}, capture_output=True, text=True,
                               check=False)
        if comma.stdout != "1,5":
            self.skipTest("the locale made here has no decimal comma")
        return str(self.folder)

    def test_all_outputs_are_the_same_i4(self):
        self.suite(SUITE)
        places = self.comma_locale()
        plain = self.outputs(LC_ALL="C")
        surroundings = [{"LC_ALL": "de_DE.UTF-8", "LC_NUMERIC": "C"}, {"LC_ALL": "", "LC_NUMERIC": "de_DE.UTF-8"},
                        {"LC_ALL": "xx_YY.none"}]
        for environment in surroundings:
            subprocess.run(["rm", "-rf", "store", "figures"], cwd=self.folder, check=True)
            other = self.outputs(LOCPATH=places, **environment)
            self.assertEqual(plain.keys(), other.keys())
            for name, text in plain.items():
                self.assertEqual(text, other[name], f"{name} under {environment}")
        self.assertGreater(sum(name.endswith(".dat") for name in plain), 2)

    def test_inputs_are_read_with_points_i4(self):
        places = self.comma_locale()
        arguments = ["plan", *TINY, "--lr", "1234.5", "--capacity", "1.5GiB", "--json"]
        record = strict_json(self.run_program(*arguments, LOCPATH=places, LC_ALL="de_DE.UTF-8").stdout)
        self.assertEqual((record["learning_rate"], record["capacity_bytes"]), (1234.5, 1610612736))
        self.run_program("plan", *TINY, "--lr", "1234,5", code=2, LOCPATH=places, LC_ALL="de_DE.UTF-8")


class Environment(ProgramTest):
    def test_times_are_utc(self):
        for zone in ("Asia/Tokyo", "America/New_York", ":/nowhere"):
            record = strict_json(self.run_program("plan", *TINY, "--json", TZ=zone).stdout)
            made = datetime.fromisoformat(record["created_utc"].replace("Z", "+00:00"))
            self.assertLess(abs(datetime.now(timezone.utc) - made), timedelta(minutes=2))

    def test_nothing_in_the_environment(self):
        for arguments in (["list"], ["doctor"], ["plan", *TINY, "-o", "store"], ["report", "store", "-f", "html"]):
            done = subprocess.run(self.command(*arguments), cwd=self.folder, env={}, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "store/report.html").exists())

    def test_doctor_tells_a_program_that_is_not_there_from_one_that_does_not_run(self):
        folder = self.folder / "bin"
        folder.mkdir()
        for text, state, says in ((None, "absent", "nothing to submit to"), ("echo slurm 22.05.8", "ok", "slurm 22.05.8"),
                                  ("echo 'sinfo: error: no configuration' >&2; exit 1", "attention", "no configuration")):
            if text:
                (folder / "sinfo").write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
                (folder / "sinfo").chmod(0o755)
            said = json.loads(self.run_program("doctor", "--json", PATH=str(folder)).stdout)
            (slurm,) = [finding for finding in said["findings"] if finding["name"] == "Slurm"]
            self.assertEqual((slurm["state"], says in slurm["detail"]), (state, True), slurm)
            self.assertEqual("remedy" in slurm, state != "ok")

    def test_no_colours_or_cursor_moves_without_a_terminal_or_with_no_color(self):
        self.run_program("plan", self.suite(SUITE), "-o", "store")
        for command in (["report", "store"], ["claims", "store"], ["plan", "./suite.yaml", "-o", "store2"]):
            done = self.run_program(*command, TERM="xterm-256color")
            self.assertNotIn("\033", done.stdout + done.stderr)
        if not shutil.which("script"):
            self.skipTest("there is no script(1) to play a terminal")
        terminal = subprocess.run(["script", "-qec", " ".join(map(repr, self.command("claims", "store"))), "/dev/null"],
                                  cwd=self.folder, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"}, capture_output=True,
                                  stdin=subprocess.DEVNULL, text=True, check=False)
        self.assertIn("36 claims", terminal.stdout)
        self.assertNotIn("\033[1", terminal.stdout)

    def test_umask_is_respected(self):
        for mask, file_mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
            store = f"store{mask:o}"
            subprocess.run(self.command("plan", *TINY, "--timeline", "-o", store), cwd=self.folder, check=True,
                           capture_output=True, umask=mask)
            subprocess.run(self.command("report", store, "-f", "html"), cwd=self.folder, check=True, capture_output=True,
                           umask=mask)
            files = [path for path in (self.folder / store).rglob("*") if path.is_file()]
            self.assertGreater(len(files), 5)
            for path in files:
                self.assertEqual(stat.S_IMODE(path.stat().st_mode), file_mode, path)


class Streams(ProgramTest):
    def shell(self, script):
        program = "'" + self.command()[0] + "'"
        done = subprocess.run(["bash", "-c", script.replace("VRAMLAB", program)], cwd=self.folder, capture_output=True,
                              text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def test_a_reader_that_leaves_ends_it_silently(self):
        for before in ("", "trap '' PIPE; "):
            code, out, errors = self.shell(before + "VRAMLAB list | head -1")
            self.assertEqual((code, out, errors), (0, "cases\n", ""))
            _, out, errors = self.shell(before + "{ sleep 0.3; VRAMLAB list; echo $? >code; } | true; sleep 0.6; cat code")
            self.assertEqual((out, errors), (f"{128 + signal.SIGPIPE}\n", ""))

    def test_output_that_cannot_be_written_is_told(self):
        for command in ("list", "help", "list --help", "plan --case bert-base --json"):
            for where in (">/dev/full", ">&-"):
                code, _, errors = self.shell(f"VRAMLAB {command} {where}")
                self.assertEqual(code, 3, f"{command} {where}")
                self.assertIn("cannot write all of the standard output", errors)
        self.assertEqual(self.shell("VRAMLAB nonsense >/dev/full")[0], 2)

    def test_closed_streams_take_no_file_of_ours(self):
        for closed in ("<&- >&- 2>&-", ">&-", "<&-", "2>&-"):
            store = f"store{len(closed)}{closed[0] == '<'}{closed[0] == '2'}"
            for command in ("plan", "run --steps 1"):
                self.shell(f"VRAMLAB {command} {' '.join(TINY)} -o {store} {closed}")
            lines = self.journal(store)
            self.assertEqual([line["provenance"] for line in lines[1:]], ["predicted", "measured"], closed)
            self.run_program("report", f"{store}/results.h5")


class Places(ProgramTest):
    def test_names_with_anything_in_them(self):
        self.suite(SUITE)
        for name in ("with spaces and 'quotes', \"and\" commas", "显存 ü", b"caf\xe9".decode("utf-8", "surrogateescape")):
            self.run_program("plan", "./suite.yaml", "-o", name, "-q", "-f", "batch (1|2|8) ")
            strict_json(self.run_program("plan", "./suite.yaml", "-o", name, "--json", "-f", "batch (1|2|8) ").stdout)
            store = self.folder / name
            for file in ("report.html", "results.h5", "figures/needed.svg"):
                self.assertTrue((store / file).exists(), (name, file))
            self.run_program("claims", name)
            self.run_program("compare", name, name)
            self.run_program("report", store / "results.h5", "-f", "md", "-o", store / "report.md")
            self.assertIn("bert-base", (store / "report.md").read_text(encoding="utf-8", errors="replace"))

    def run_program(self, *arguments, code=0, **environment):
        """As ever, with output that need not be UTF-8."""
        done = subprocess.run([os.fsencode(str(word)) for word in self.command(*arguments)], cwd=self.folder,
                              env={**os.environ, **environment}, capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode("utf-8", "replace"),
                                           done.stderr.decode("utf-8", "replace"))

    def test_paths_that_are_too_long_are_refused_before_anything_runs(self):
        deep, wide = "/".join(["d" * 200] * 25), "w" * 300
        for name, code, says in ((deep, 2, "path too long (5024 characters)"), (wide, 3, "File name too long")):
            for command in (["plan", *TINY], ["plan", self.suite(SUITE)]):
                self.refuses(*command, "-o", name, says=says, code=code)
        for reader in ("report", "claims", "plot"):
            self.refuses(reader, deep, says="File name too long")

    def test_long_paths_that_are_allowed_work(self):
        name = "/".join(["ü" * 100] * 15)
        self.run_program("plan", *TINY, "-o", name)
        self.run_program("report", name, "-f", "html")
        self.assertTrue((self.folder / name / "report.html").exists())
        head = self.journal(name)[0]
        self.assertTrue(re.match("vramlab plan --case bert-base", head["command_line"]))


if __name__ == "__main__":
    main()
