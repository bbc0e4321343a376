"""A6: 12,282 MiB, which is 12,878,610,432 bytes, 12,878.61 MB and 11.994 GiB, in every view of a store and on the command
line: the label is that of the divisor."""

import json
import re
import subprocess

from program import ProgramTest, main, strict_json

BYTES = 12_878_610_432
# The number under another unit's divisor.
WRONG = re.compile(r"12[,. ]?282(\.0+)? ?(MB|GB|GiB)|12\.28\d* ?(GB|GiB|TB)|12[,. ]?878(\.61\d*)? ?(MiB|GiB|GB)|12\.8[78]\d* ?GiB|"
                   r"11\.99\d* ?(GB|MB|MiB)|11[,. ]?994 ?(MB|MiB|GB)")
OPTIONS = ["--case", "resnet50", "--batch", "32"]


class Units(ProgramTest):
    def setUp(self):
        super().setUp()
        for store, more in (("store", 0), ("other", 1 << 20)):
            self.make(store, BYTES, more)

    def make(self, store, size, more):
        """A store of one record in which every figure of memory is that size."""
        record = strict_json(self.run_program("plan", *OPTIONS, "--json").stdout)
        for name, value in record.items():
            if name.endswith("_bytes") and isinstance(value, int) and name != "memory_bytes":
                record[name] = size + more
        record["scopes"] = [{"scope": "layer1", "bytes": size}]
        record["step_peaks_bytes"] = [size]
        subprocess.run(self.command("import", "--store", store), cwd=self.folder, input=json.dumps(record), text=True,
                       check=True, capture_output=True)

    def check(self, view, text, *shown):
        found = WRONG.search(text)
        self.assertIsNone(found, f"{view}: {found}")
        for part in shown:
            self.assertIn(part, text, view)

    def test_reports_a6(self):
        self.check("screen", self.run_program("report", "store").stdout, "11.99", "GiB")
        for form in ("md", "html"):
            self.check(form, self.run_program("report", "store", "-f", form, "-o", "-").stdout, "11.99", "GiB")

    def test_figures_a6(self):
        self.run_program("plot", "store", "-o", "figures", "-f", "svg")
        needed = (self.folder / "figures/needed.dat").read_text(encoding="utf-8")
        self.check("needed.dat", needed, "11.994")
        self.assertIn("GiB", (self.folder / "figures/needed.svg").read_text(encoding="utf-8"))
        for path in (self.folder / "figures").iterdir():
            self.check(path.name, path.read_text(encoding="utf-8"))

    def test_exports_a6(self):
        for form in ("csv", "jsonl", "prometheus", "junit"):
            text = self.run_program("export", "store", "--format", form).stdout
            self.check(form, text, *([] if form == "junit" else [str(BYTES)]))
        header = self.run_program("export", "store", "--format", "csv").stdout.splitlines()[0]
        columns = [name for name in header.split(",") if re.search("bytes|[mg]ib|[mg]b$", name)]
        self.assertGreater(len(columns), 20)
        for name in columns:
            self.assertEqual(len(re.findall("bytes|mib|gib|mb|gb", name)), 1, name)

    def test_comparison_and_claims_a6(self):
        text = self.run_program("compare", "store", "other", code=1).stdout
        self.check("compare", text, str(BYTES), "+1.00 MiB")
        self.check("compare --json", self.run_program("compare", "store", "other", "--json", code=1).stdout, str(BYTES))
        for form in ("table", "md", "json"):
            self.check(f"claims {form}", self.run_program("claims", "store", "--format", form).stdout)

    def test_command_line_a6(self):
        record = strict_json(self.run_program("plan", *OPTIONS, "--capacity", "12282MiB", "--json").stdout)
        self.assertEqual(record["capacity_bytes"], BYTES)
        for written in ("12878610432", "12282MiB"):
            text = self.run_program("max-batch", "--case", "resnet50", "--recipe", "baseline", "--capacity", written).stdout
            self.check("max-batch", text, "11.994 GiB")
            text = self.run_program("fit", *OPTIONS[:2], "--global-batch", "32", "--capacity", written).stdout
            self.check("fit", text, "11.994 GiB")


if __name__ == "__main__":
    main()
