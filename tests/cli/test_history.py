"""vramlab report --history: the night a cell got slower or larger is named, a wild night and noise are not, nights without a
cell are gaps; nights may hold several stores."""

import json
import random

from program import ProgramTest, main

NIGHTS, SLOWER, LARGER = 16, 9, 11


class History(ProgramTest):
    def nights(self):
        self.run_program("run", "--case", "resnet50", "--set", "size=32", "--batch", "1", "--infer", "--device", "cpu", "-o", "one",
                         "-q")
        head, record = self.journal("one")
        draw = random.Random(5)
        for night in range(NIGHTS):
            store = self.folder / f"nights/2026-01-{night + 1:02d}/quick"
            store.mkdir(parents=True)
            records = []
            for name in ("steady", "slower", "larger", "wild", "gap"):
                if name == "gap" and night == 3:
                    continue
                step_s = draw.gauss(0.1, 0.001) * (1.08 if name == "slower" and night >= SLOWER else 1)
                records.append({**record, "cell_key": f"{name:0>16}", "settings": name, "repeat": 0,
                                "step_s": 0.3 if name == "wild" and night == 7 else step_s,
                                "peak_allocated_bytes": 1 << 30 | (name == "larger" and night >= LARGER)})
            store.joinpath("journal.jsonl").write_text("\n".join(map(json.dumps, [head, *records])) + "\n", encoding="utf-8")

    def test_the_first_bad_night_is_named(self):
        self.nights()
        done = self.run_program("report", "--history", "nights", "-f", "md", code=1)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
        changes = {(row[0].split()[1], row[1]): row[5] for row in rows if "batch 1" in row[0]}
        bad = {key: text for key, text in changes.items() if text != "none"}
        self.assertEqual(set(bad), {("slower", "step_s"), ("larger", "peak_allocated_bytes")})
        self.assertIn(f"2026-01-{SLOWER + 1:02d}", bad["slower", "step_s"])
        self.assertIn(f"2026-01-{LARGER + 1:02d}", bad["larger", "peak_allocated_bytes"])
        self.assertTrue(all(text.startswith("WORSE") for text in bad.values()))
        lines = {(row[0].split()[1], row[1]): row[2] for row in rows if "batch 1" in row[0]}
        self.assertEqual(len(lines["steady", "step_s"]), NIGHTS)
        self.assertEqual(lines["gap", "step_s"][3], "·")
        self.assertEqual(set(lines["steady", "peak_allocated_bytes"]), {"▁"})
        page = self.run_program("report", "--history", "nights", "-f", "html", "-o", "history.html", code=1)
        self.assertIn("first bad night", (self.folder / "history.html").read_text(encoding="utf-8"))
        self.assertEqual(page.stdout.strip(), "history.html")

    def test_usage(self):
        self.refuses("report", "--history", "nowhere", says="nowhere")
        (self.folder / "few/2026-01-01").mkdir(parents=True)
        self.refuses("report", "--history", "few", says="needs two")


if __name__ == "__main__":
    main()
