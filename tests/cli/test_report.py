"""The report of stores as they come: every element closed, every link leads somewhere, nothing fetched, and names that would
be markup are text; stores that are empty, of one cell, out of memory or crashed have a report that says so."""

import json
import re
from html.parser import HTMLParser

from program import ProgramTest, main

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta"}  # without an end tag
HOSTILE = "a\"b'c<script>alert(1)</script>&amp;|`x`\n*ü* {}"


class Page(HTMLParser):
    """A page with its elements balanced, or AssertionError; its links, anchors and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.sources, self.elements, self.text = [], [], [], [], {}, ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_startendtag(self, tag, attributes):
        self.attributes(tag, attributes)

    def handle_starttag(self, tag, attributes):
        self.attributes(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> ends {self.open[-3:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data

    def attributes(self, tag, attributes):
        self.elements.setdefault(tag, []).append(dict(attributes))
        for name, value in attributes:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "href"):
                self.sources.append(value)


class Report(ProgramTest):
    def page(self, store):
        """The checked page of a store."""
        path = self.run_program("report", store, "-f", "html").stdout.strip()
        text = (self.folder / path).read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        self.assertTrue(page.links or "no finished cell" in page.text)
        self.assertEqual([link for link in page.links if link[0] != "#" or link[1:] not in page.ids], [])
        self.assertEqual([source for source in page.sources if not source.startswith(("data:", "#"))], [])
        self.assertNotRegex(text, r"@import|url\(\s*['\"]?(?!#)")
        self.assertEqual(len(page.elements["script"]), 1)  # our own
        self.assertTrue(all(table.get("aria-label") for table in page.elements.get("div", [])
                            if "table" in table.get("class", "").split()))
        self.assertTrue(all(head.get("scope") or head.get("aria-hidden") for head in page.elements.get("th", [])))
        self.assertTrue(all(image.get("alt") for image in page.elements.get("img", [])))
        self.assertTrue(all(image.get("aria-label") for image in page.elements.get("svg", [])))
        return page

    def one_cell(self):
        self.run_program("plan", "--case", "resnet50", "--set", "size=32", "--batch", "2", "-o", "one")
        head, record = (self.folder / "one/journal.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads(head), json.loads(record)

    def store(self, name, head, records):
        (self.folder / name).mkdir()
        (self.folder / name / "journal.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in [head, *records]), encoding="utf-8")
        return name

    def test_a_suite(self):
        self.run_program("plan", "quick", "-q", "-o", "store")
        page = self.page("store")
        for heading in ("Summary", "Claims", "resnet50 training", "Claims in full", "Every byte explained", "All cells", "Provenance"):
            self.assertIn("#" + heading.lower().replace(" ", "-"), page.links)
        self.assertIn("#claim-resnet-shape", page.links)
        self.assertIn("Every cell ended ok.", page.text)
        text = self.run_program("report", "store", "-f", "md", "-o", "-").stdout
        self.assertEqual(set(re.findall(r"\]\((#[^)]*)\)", text)), set(page.links))  # the same contents and links

    def test_names_that_would_be_markup_are_text(self):
        head, record = self.one_cell()
        bad = {**record, "recipe": HOSTILE, "hardware": HOSTILE, "settings": HOSTILE, "status": "crashed", "error": HOSTILE,
               "disturbed": HOSTILE, "cell_key": "0" * 16}
        store = self.store("hostile", {**head, "suite": HOSTILE, "command_line": HOSTILE},
                           [{**record, "suite": HOSTILE, "settings": HOSTILE}, {**bad, "suite": HOSTILE}])
        page = self.page(store)
        self.assertIn("<script>alert(1)</script>&amp;|`x`", page.text)
        text = self.run_program("report", store, "-f", "md", "-o", "-").stdout
        self.assertNotRegex(text, r"(?<!\\)<script")
        rows = [re.sub(r"\\\\|\\\|", "", line) for line in text.splitlines() if line.startswith("|")]
        widths = {row.count("|") for row in rows}
        self.assertTrue(rows and min(widths) > 2)
        for first, second in zip(rows, rows[1:]):  # a head, its rule and its rows are as wide
            if second.startswith(("|---", "|---:")):
                width = first.count("|")
                self.assertEqual(second.count("|"), width)
        for row in rows:
            self.assertTrue(row.endswith("|"), row)

    def test_stores_with_little_in_them(self):
        head, record = self.one_cell()
        self.assertIn("no finished cell", self.page(self.store("empty", head, [])).text)
        self.assertIn("1 cell: 1 predicted for plan:cpu", self.page("one").text)
        gone = {"needed_bytes": None, "samples_per_s": None, "peak_allocated_bytes": None, "peak_by_category": {}, "losses": []}
        oom = [{**record, **gone, "status": "oom", "error": "no room", "oom_segment": "forward", "cell_key": str(i) * 16,
                "capacity_bytes": 1 << 30} for i in range(3)]
        page = self.page(self.store("oom", head, oom))
        self.assertIn("How they ended: 3 oom.", page.text)
        self.assertIn("#out-of-memory", page.links)
        crashed = {**record, **gone, "status": "crashed", "error": "signal 11", "hardware": None}
        page = self.page(self.store("crashed", head, [crashed]))
        self.assertIn("How they ended: 1 crashed.", page.text)
        self.assertIn("signal 11", page.text)

    def test_a_broken_promise_is_in_the_summary(self):
        head, record = self.one_cell()
        measured = {**record, "provenance": "measured", "device": "cpu", "device_name": "cpu", "losses": [7.0, 6.5]}
        broken = {**measured, "recipe": "checkpoint=1", "losses": [7.0, 6.25], "cell_key": "f" * 16}
        kept = {**broken, "losses": [7.0, 6.5]}
        self.assertIn("BROKEN: the losses of 1 of 1 recipes", self.page(self.store("broken", head, [measured, broken])).text)
        self.assertIn("1 recipe held against the baseline's losses, no promise broken", self.page(self.store("kept", head, [measured, kept])).text)
        again = {**kept, "cell_key": "e" * 16, "repeat": 1}
        page = self.page(self.store("twice", head, [measured, broken, again]))  # of repetitions the worst counts
        self.assertIn("BROKEN: the losses of 1 of 1 recipes", page.text)

    def test_errors_of_plans_by_category(self):
        head, record = self.one_cell()
        more = {**record["peak_by_category"], "activation": record["peak_by_category"]["activation"] + (1 << 20)}
        measured = {**record, "provenance": "measured", "device": "cpu", "device_name": "cpu", "cell_key": "d" * 16,
                    "peak_by_category": more, "peak_allocated_bytes": record["peak_allocated_bytes"] + (1 << 20)}
        text = self.run_program("report", self.store("pair", head, [record, measured]), "-f", "md", "-o", "-").stdout
        share = 100 * (1 << 20) / more["activation"]
        self.assertIn(f"| activation | 1 | 0 | -1.00 | {share:.2f} |", text)
        self.assertIn("| parameter | 1 | 1 | +0.00 | 0.00 |", text)


if __name__ == "__main__":
    main()
