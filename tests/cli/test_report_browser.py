"""The HTML report of the suite quick, measured, in headless Chromium: no word on the console, nothing fetched, no page wider
than its window, be it a phone's; tables sort by a click and by the keyboard, there and back; on paper there is a page for
every part, and the same without the script. 77 where there is no Chromium.

usage: test_report_browser.py FOLDER_OF_THE_PROGRAM"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Runs in the page, after the report's own script; the frame around it shows what it found in its title.
PROBE = """<script>
const tables = [...document.querySelectorAll('.table table')];
const column = (table, head) => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[head.cellIndex].textContent))
  .filter((value) => !Number.isNaN(value));
const ordered = (values, sign) => values.every((value, i) => i === 0 || sign * (value - values[i - 1]) >= 0);
const facts = { width: document.documentElement.scrollWidth, window: innerWidth, tables: tables.length, rows: 0, wrong: [],
  dark: matchMedia('(prefers-color-scheme: dark)').matches, paper: getComputedStyle(document.body).backgroundColor,
  fetched: performance.getEntriesByType('resource').map((entry) => entry.name).filter((name) => !name.startsWith('data:')) };
for (const table of tables) {
  for (const head of table.querySelectorAll('thead th.number')) {
    const before = column(table, head).length;
    head.click();
    const up = ordered(column(table, head), 1) && head.getAttribute('aria-sort') === 'ascending';
    head.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }));
    const down = ordered(column(table, head), -1) && head.getAttribute('aria-sort') === 'descending';
    facts.rows = Math.max(facts.rows, before);
    if (!up || !down || column(table, head).length !== before || head.tabIndex !== 0) facts.wrong.push(head.textContent);
  }
}
parent.postMessage(JSON.stringify(facts), '*');
</script>"""
FRAME = """<!DOCTYPE html><html><head><title></title></head><body style="margin:0">
<script>addEventListener('message', (event) => { document.title = event.data; });</script>
<iframe src="probe.html" style="border:0;width:%dpx;height:900px"></iframe></body></html>"""


def browse(browser, page, *options):
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", *options,
                           page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    return done.stdout


def look(browser, folder, width, *options):
    """What the probe finds at a window of that width: a frame's, as a window has a least width of its own."""
    (folder / "frame.html").write_text(FRAME % width, encoding="utf-8")
    shown = browse(browser, folder / "frame.html", "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", *options)
    facts = json.loads(re.search(r"<title>([^<]*)</title>", shown).group(1).replace("&quot;", '"').replace("&amp;", "&"))
    print(width, *options, facts)
    assert facts["window"] == width and facts["width"] <= width, facts
    assert facts["fetched"] == [] and facts["wrong"] == [] and facts["rows"] > 5 and facts["tables"] > 8, facts
    return facts


def main():
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        print("no Chromium (apt-get install chromium)")
        sys.exit(77)
    folder = Path(tempfile.mkdtemp())
    subprocess.run([Path(sys.argv[1]) / "vramlab", "run", "quick", "-q", "-o", folder / "store"], check=True,
                   stdout=subprocess.DEVNULL)
    page = (folder / "store/report.html").read_text(encoding="utf-8")
    (folder / "probe.html").write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    light = [look(browser, folder, width, "--blink-settings=preferredColorScheme=1") for width in (360, 1280)]
    dark = look(browser, folder, 1280, "--blink-settings=preferredColorScheme=0")
    assert dark["dark"] and not light[1]["dark"] and dark["paper"] != light[1]["paper"], (dark, light)

    browse(browser, folder / "store/report.html", f"--print-to-pdf={folder / 'report.pdf'}", "--no-pdf-header-footer")
    pages = len(re.findall(rb"/Type\s*/Page\b", (folder / "report.pdf").read_bytes()))
    print(pages, "pages")
    assert 5 <= pages <= 40, pages
    without = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    (folder / "without.html").write_text(without, encoding="utf-8")
    assert "Every cell ended ok." in browse(browser, folder / "without.html", "--dump-dom")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
