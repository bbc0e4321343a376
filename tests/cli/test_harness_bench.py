"""scripts/bench/harness.py measures what it says: a short run of it. Its times are looked at where the machine is quiet."""

import subprocess
import sys
from pathlib import Path

from program import BIN, ProgramTest, main, strict_json

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/bench/harness.py"


class HarnessBench(ProgramTest):
    def test_a_short_run(self):
        done = subprocess.run([sys.executable, SCRIPT, "--cells", "40", "--measured", "2", "--runs", "1", "--bin", BIN,
                               "--results", self.folder], capture_output=True, text=True, timeout=120, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)  # 1: too slow, which says nothing here
        result = strict_json((self.folder / "bench-harness.json").read_text(encoding="utf-8"))
        self.assertEqual(result["medians"].keys(), result["limits"].keys())
        counts = {kind: runs[0]["cells"] for kind, runs in result["runs"].items()}
        self.assertEqual(counts, {"planned": 40, "free": 40, "measured": 2})
        planned = result["runs"]["planned"][0]
        self.assertTrue(0 < planned["cells_s"] < planned["run_s"])
        self.assertTrue(0 < planned["again_s"] < planned["run_s"])
        # Each of a thousand cells may take 20 kB, with its share of what a store has in any case.
        self.assertLess(planned["store_bytes"], 40 * 20_000 + 2_500_000)
        refused = subprocess.run([sys.executable, SCRIPT, "--cells", "30"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 2)


if __name__ == "__main__":
    main()
