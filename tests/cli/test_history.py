"""vramlab report --history: the first bad night of a time, of a byte and of a status is named; noise alone, one wild
night and what came back are not; the page parses, with a line for every quantity; wrong usage is refused."""

import json
import random
import re
import xml.etree.ElementTree as xml

from program import ProgramTest, main

NIGHTS = 14


class History(ProgramTest):
    def nights(self, change):
        """Stores as of one run, night after night in "DATE/small", with times of 1 % noise; change(night, record) alters
        them."""
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "2", "--device", "cpu", "--steps", "6",
                         "-q", "-o", "one")
        head, record = (json.loads(line) for line in (self.folder / "one/journal.jsonl").read_text(encoding="utf-8").splitlines())
        noise = random.Random(7)
        for night in range(NIGHTS):
            store = self.folder / f"nights/2026-11-{night + 10}/small"
            store.mkdir(parents=True)
            new = {**record, "step_s": 0.1 * noise.lognormvariate(0, 0.01)}
            change(night, new)
            lines = [{**head, "created_utc": f"2026-11-{night + 10}T23:00:00Z"}, new]
            (store / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        (self.folder / "nights/latest").symlink_to(store.parent)

    def test_the_first_bad_night_is_named(self):
        def change(night, record):
            record["step_s"] *= 1.06 if night >= 9 else 1
            record["peak_workspace_bytes"] = 5 << 20 if night >= 11 else 4 << 20
            record["peak_by_category"] = {**record["peak_by_category"], "workspace": record["peak_workspace_bytes"]}

        self.nights(change)
        said = self.run_program("report", "--history", "nights", code=1).stdout
        self.assertIn(f"{NIGHTS} stores, 2026-11-10 23:00 to 2026-11-23 23:00", said)
        self.assertRegex(said, r"step_s +[▁▂▃▄▅▆▇█]{14}  \d+ ms\n    regressed since 2026-11-19 23:00: .*\+[567]\.\d %")
        self.assertRegex(said, r"peak_workspace_bytes .*\n    regressed since 2026-11-21 23:00: .*\+1\.00\d* MiB")
        self.assertIn("2 lines regressed and did not come back", said)
        self.assertNotIn("peak_gradient_bytes", said)  # never changed
        path = self.run_program("report", "--history", "nights", "-f", "html", code=1).stdout.strip()
        self.assertEqual(path, "nights/history.html")
        page = xml.parse(self.folder / path).getroot()
        space = "{http://www.w3.org/1999/xhtml}"
        circles = [c for c in page.iter(f"{space}circle") if c.get("class") == "regressed"]
        self.assertEqual(len(circles), 2)
        self.assertTrue(all(len(line.get("points").split()) == NIGHTS for line in page.iter(f"{space}polyline")))
        self.assertFalse(re.search(r"(src|href)=", (self.folder / path).read_text(encoding="utf-8")))

    def test_noise_one_wild_night_and_what_came_back(self):
        def change(night, record):
            record["step_s"] *= 1.5 if night == 6 else 1
            if night in (3, 4):
                record["status"] = "oom"
                record["step_s"] = None

        self.nights(change)
        said = self.run_program("report", "--history", "nights").stdout
        self.assertRegex(said, r"status +█{3}▁{2}█{9}  ok\n    regressed since 2026-11-13 .*ok -> not ok\n"
                               r"    improved since 2026-11-15 ")
        self.assertIn("0 lines regressed", said)
        self.assertRegex(said, r"step_s +\S{12}  .*\n  \S")  # no change below it

    def test_usage(self):
        (self.folder / "empty").mkdir()
        for arguments in (["--history", "empty"], ["--history", "nowhere"], ["--history", "empty", "store"],
                          ["--history", "empty", "-f", "md"]):
            done = self.run_program("report", *arguments, code=2)
            self.assertTrue(done.stderr.strip(), arguments)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    main()
