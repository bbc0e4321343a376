"""The HTML report of a real store in headless Chromium: no word on the console, nothing fetched, no page wider than its
window, a click on a head sorts the table. 77 where there is no Chromium.

usage: test_report_browser.py FOLDER_OF_THE_PROGRAM"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROBE = """<script>
const heads = [...document.querySelectorAll('.table thead th.number')];
heads[0].click();
const cells = [...heads[0].closest('table').tBodies[0].rows].map((row) => row.cells[heads[0].cellIndex].textContent);
const numbers = cells.map(parseFloat).filter((value) => !Number.isNaN(value));
const sorted = numbers.every((value, i) => i === 0 || numbers[i - 1] <= value);
document.title = `width=${document.documentElement.scrollWidth} window=${innerWidth} sorted=${sorted} rows=${numbers.length}`
  + ` fetched=${performance.getEntriesByType('resource').length}`;
</script>"""


def main():
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        print("no Chromium (apt-get install chromium)")
        sys.exit(77)
    folder = Path(tempfile.mkdtemp())
    subprocess.run([Path(sys.argv[1]) / "vramlab", "plan", "quick", "-q", "-o", folder / "store"], check=True,
                   stdout=subprocess.DEVNULL)
    page = (folder / "store/report.html").read_text(encoding="utf-8")
    (folder / "probe.html").write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    for width in (500, 1280):
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
                               f"--window-size={width},900", "--dump-dom", (folder / "probe.html").as_uri()],
                              capture_output=True, text=True, timeout=120, check=True)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not said, said
        title = re.search(r"<title>([^<]*)</title>", done.stdout).group(1)
        facts = dict(word.split("=") for word in title.split())
        print(width, facts)
        assert int(facts["width"]) <= int(facts["window"]), facts
        assert facts["sorted"] == "true" and int(facts["rows"]) > 2 and facts["fetched"] == "0", facts


if __name__ == "__main__":
    main()
