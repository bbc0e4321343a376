"""vramlab plot of several stores: labels as they are, the same recipe and batch side by side, what has no counterpart named
with the reason, nothing drawn of nothing, and wrong labels refused; the report of several stores says the same."""

import json
import re
import shutil
import tempfile
import unicodedata
import unittest

from program import ProgramTest, main

SUITE = """name: small
title: Small
help: Cells.
defaults: {device: cpu, warmup: 1, steps: 2}
cells:
  - case: resnet50
    settings: {size: 32}
    batch: [2, 4]
    recipe: [baseline, amp=bf16]
"""
LABELS = ['H100, "80" GB_x', "ü`date`"]
COMPARED = ["max-batch", "throughput-equal-batch", "throughput-best", "speedup", "tradeoff", "samples-per-gib",
            "samples-per-joule", "prediction-error"]


@unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot")
class Plot(ProgramTest):
    made = None  # the stores, made once and copied for each test

    def stores(self):
        if Plot.made is None:
            self.make_stores()
            Plot.made = tempfile.TemporaryDirectory()
            self.addClassCleanup(Plot.made.cleanup)
            for name in ("a", "b"):
                shutil.copytree(self.folder / name, f"{Plot.made.name}/{name}")
        else:
            for name in ("a", "b"):
                shutil.copytree(f"{Plot.made.name}/{name}", self.folder / name)

    def make_stores(self):
        (self.folder / "small.yaml").write_text(SUITE, encoding="utf-8")
        self.run_program("run", "./small.yaml", "-q", "-o", "a")
        self.run_program("plan", "./small.yaml", "-q", "-o", "a")
        shutil.copytree(self.folder / "a", self.folder / "b")
        (self.folder / "b/results.h5").unlink()
        journal = self.folder / "b/journal.jsonl"
        head, *records = self.journal("b")
        for record in records:
            if record["recipe"] == "amp=bf16" and record["provenance"] == "measured":
                if record["global_batch"] == 4:
                    record.update(status="oom", samples_per_s=None, step_s=None, step_times_s=[], step_count=0)
            for name in ("samples_per_s", "step_s_low", "step_s_high", "step_s"):
                if record.get(name):
                    record[name] *= 0.5 if name == "samples_per_s" else 2
        records = [r for r in records if not (r["recipe"] == "baseline" and r["global_batch"] == 4)]
        journal.write_text("\n".join(map(json.dumps, [head, *records])) + "\n", encoding="utf-8")

    def plot(self, *arguments, code=0):
        labels = [word for label in LABELS for word in ("--label", label)]
        return self.run_program("plot", *arguments, "a", "b", *labels, "-o", "figures", "-f", "svg", code=code)

    def test_side_by_side(self):
        self.stores()
        done = self.plot()
        drawn = {line.split("/")[-1].removesuffix(".svg") for line in done.stdout.splitlines()}
        self.assertEqual(drawn, set(COMPARED) - {"max-batch", "samples-per-joule"})
        self.assertIn("max-batch was not drawn", done.stderr)
        self.assertIn("samples-per-joule was not drawn", done.stderr)
        data = (self.folder / "figures/throughput-equal-batch.dat").read_text(encoding="utf-8")
        self.assertIn('"OOM"', data)
        self.assertNotIn("baseline, batch 4", data)  # only one has it
        figure = (self.folder / "figures/speedup.svg").read_text(encoding="utf-8")
        for label in LABELS:
            self.assertIn(label.replace('"', "&quot;"), figure.replace('"80"', "&quot;80&quot;"))
        values = re.findall(r"^\d[\d.]* ([\d.]+) ", (self.folder / "figures/speedup.dat").read_text(encoding="utf-8"), re.M)
        self.assertEqual({round(float(value), 6) for value in values} - {0.0}, {1.0, 0.5})
        other = self.plot("speedup", "--reference", LABELS[1])
        values = re.findall(r"^\d[\d.]* ([\d.]+) ", (self.folder / "figures/speedup.dat").read_text(encoding="utf-8"), re.M)
        self.assertEqual({round(float(value), 6) for value in values} - {0.0}, {1.0, 2.0})
        self.assertEqual(other.stdout.strip(), "figures/speedup.svg")

    def test_only_equal_gates_stand_side_by_side(self):
        self.stores()
        journal = self.folder / "b/journal.jsonl"
        head, *records = self.journal("b")
        for record in records:
            if record["recipe"] == "amp=bf16":
                record["preserves"] = "different-model"
        journal.write_text("\n".join(map(json.dumps, [head, *records])) + "\n", encoding="utf-8")
        self.plot("throughput-equal-batch")
        data = (self.folder / "figures/throughput-equal-batch.dat").read_text(encoding="utf-8")
        self.assertIn("baseline", data)
        self.assertNotIn("amp=bf16", data)
        labels = [word for label in LABELS for word in ("--label", label)]
        told = self.run_program("report", "a", "b", *labels, "-f", "md", "-o", "-").stdout
        self.assertIn("different-model", told)

    def test_nothing_to_draw(self):
        self.stores()
        for name in ("a", "b"):
            journal = self.folder / name / "journal.jsonl"
            head, *records = self.journal(name)
            for record in records:
                record.update(status="oom", needed_bytes=None, samples_per_s=None, step_s=None)
            journal.write_text("\n".join(map(json.dumps, [head, *records])) + "\n", encoding="utf-8")
        done = self.plot()
        self.assertEqual(done.stdout, "")
        self.assertEqual([line.split()[1] for line in done.stderr.splitlines()], COMPARED)
        self.assertEqual(list((self.folder / "figures").iterdir()), [])

    def test_report(self):
        self.stores()
        labels = [word for label in LABELS for word in ("--label", label)]
        page = self.run_program("report", "a", "b", *labels, "-f", "md", "-o", "-").stdout
        table = page[page.index("Samples a second, same recipe"):page.index("each one's best batch")]
        self.assertIn("OOM", table)
        self.assertIn(" 0.50", table)  # b is half as fast
        self.assertNotIn("baseline, batch 4", table)
        missing = page[page.index("Not compared"):]
        self.assertIn("baseline, batch 4", missing)
        self.assertRegex(missing, r"global batch.*H100, .* 4; ü.* 2")
        turned = self.run_program("report", "a", "b", *labels, "--reference", LABELS[1], "-f", "md", "-o", "-").stdout
        self.assertIn(" 2.00", turned)
        screen = self.run_program("report", "a", "b", *labels)
        self.assertEqual(screen.stderr, "")
        self.assertIn("OOM", screen.stdout)
        done = self.run_program("report", "a", "b", *labels, "-f", "html", "-o", "both.html")
        self.assertEqual((done.stdout, done.stderr), ("both.html\n", ""))
        self.assertIn("<svg", (self.folder / "both.html").read_text(encoding="utf-8"))

    def rewrite(self, name, change):
        head, *records = self.journal(name)
        for record in records:
            change(record)
        (self.folder / name / "journal.jsonl").write_text("\n".join(map(json.dumps, [head, *records])) + "\n",
                                                          encoding="utf-8")

    def test_labels_nobody_gave(self):
        """Devices; where two are the same, the stores' names as well."""
        self.stores()
        page = self.run_program("report", "a", "b").stdout
        hardware = next(record["hardware"] for record in self.journal("a")[1:] if record["hardware"])
        self.assertRegex(" ".join(page.split()), re.escape(f"{hardware} (a)"))
        self.assertIn(f"{hardware} (b)", page)
        self.rewrite("b", lambda record: record.update(profile="H200"))
        done = self.run_program("plot", "throughput-equal-batch", "a", "b", "-o", "figures", "-f", "svg")
        self.assertEqual(done.stdout, "figures/throughput-equal-batch.svg\n")
        script = (self.folder / "figures/throughput-equal-batch.gp").read_text(encoding="utf-8")
        self.assertIn("'H200 (measured)'", script)
        self.assertIn(f"'{hardware} (measured)'", script)
        (self.folder / "c").mkdir()
        shutil.copytree(self.folder / "a", self.folder / "c/a")
        page = self.run_program("report", "a", "c/a").stdout  # the stores' names are the same too
        self.assertIn(f"{hardware} (c/a)", page)

    def test_missing_directories_are_made(self):
        self.stores()
        labels = [word for label in LABELS for word in ("--label", label)]
        done = self.run_program("plot", "speedup", "a", "b", *labels, "-o", "new/one/two", "-f", "png")
        self.assertEqual((done.stdout, done.stderr), ("new/one/two/speedup.png\n", ""))
        self.assertTrue((self.folder / "new/one/two/speedup.png").exists())
        done = self.run_program("report", "a", "b", *labels, "-f", "html", "-o", "other/place/both.html")
        self.assertEqual((done.stdout, done.stderr), ("other/place/both.html\n", ""))
        (self.folder / "file").write_text("", encoding="utf-8")
        for command in (["plot", "-o", "file/figures"], ["report", "-f", "html", "-o", "file/both.html"]):
            done = self.run_program(*command, "a", "b", *labels, code=3)
            self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
            self.assertIn("file", done.stderr)

    def test_tables_are_as_wide_as_they_look(self):
        """A wide character takes two columns, an umlaut one: columns stay in line."""
        self.stores()
        for label in ("größer", "显存显存"):
            page = self.run_program("report", "a", "b", "--label", label, "--label", "plain").stdout
            table = page[page.index("What is compared"):].split("\n\n")[0].splitlines()[1:]
            places = set()
            for line, word in zip(table, ["device", *["cpu"] * 2]):
                columns = 0
                for character in line[:line.index(word)]:
                    columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
                places.add(columns)
            self.assertEqual(len(places), 1, page)

    def test_usage(self):
        self.stores()
        for arguments, says in [(["a", "b", "--label", "x"], "1 label for 2 stores"),
                                (["a", "b", *["--label", "x", "--label", "y", "--label", "z"]], "3 labels for 2 stores"),
                                (["a", "b", "--label", "x", "--label", ""], "empty"),
                                (["a", "b", "--label", "x", "--label", "x"], "twice"),
                                (["a", "--label", "x", "--label", "y"], "2 labels for 1 store"),
                                (["a", "b", "--label", "x", "--label", "y", "--reference", "z"], "--reference"),
                                (["needed", "a", "b", "--label", "x", "--label", "y"], "one store"),
                                (["speedup", "a"], "several stores"), (["nonsense", "a"], "")]:
            self.refuses("plot", *arguments, says=says)
        for command in ("plot", "report"):
            self.refuses(command, "a", "a/", "--label", "x", "--label", "y", says="the same store")
            self.refuses(command, "a", "b", "--label", "x", says="1 label for 2 stores")
            self.refuses(command, "a", "b", "--label", "x", "--label", "x", says="twice")
            self.refuses(command, "a", "b", "--reference", "z", says="(b)")  # the labels there are


if __name__ == "__main__":
    main()
