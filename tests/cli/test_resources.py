"""Cards as resources of CTest: doctor lists them as the management library of tests/kernels/cuda/host does, CTest reads
its file and gives every test a card of its own, and the program takes the one it was given."""

import json
import os
import subprocess
from pathlib import Path

from program import BIN, ProgramTest, main, strict_json

ROOT = Path(__file__).resolve().parents[2]
NVML = BIN.resolve().parent / "bin-host-card"
CARDS = [f"GPU-aaaa0000-0000-4000-8000-{number:012}" for number in (1, 2, 3)]
SLICES = [f"MIG-bbbb0000-0000-5000-8000-{number:012}" for number in (1, 2, 3)]
# A test of a card: which one doctor sees, from when to when.
TEST = """import json, subprocess, sys, time
begin = time.monotonic()
said = json.loads(subprocess.run([sys.argv[1], "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
seen = [finding["facts"]["uuid"] for finding in said["findings"] if finding["name"].startswith("card ")]
time.sleep(0.5)
with open(sys.argv[2], "w") as out:
    json.dump({"seen": seen, "begin": begin, "end": time.monotonic()}, out)
"""


def as_id(uuid):
    return uuid.lower().replace("-", "_")


class Resources(ProgramTest):
    def doctor(self, option, nvml, **environment):
        done = self.run_program("doctor", option, LD_LIBRARY_PATH=str(NVML), VRAMLAB_HOST_NVML=nvml, **environment)
        return strict_json(done.stdout)

    def listed(self, nvml, **environment):
        spec = self.doctor("--ctest-resources", nvml, **environment)
        self.assertEqual(spec["version"], {"major": 1, "minor": 0})
        cards = spec["local"][0]["gpus"]
        self.assertTrue(all(card["slots"] == 1 for card in cards))
        return [card["id"] for card in cards]

    def test_cards_and_instances(self):
        self.assertEqual(self.listed("cards=0"), [])
        self.assertEqual(self.listed("cards=2"), [as_id(uuid) for uuid in CARDS[:2]])
        # A card that is cut takes no work, its instances do; empty places between them are none.
        self.assertEqual(self.listed("cards=2,mig=3"), [as_id(CARDS[0]), *map(as_id, SLICES)])

    def test_hidden_cards_are_no_resources(self):
        self.assertEqual(self.listed("cards=3", CUDA_VISIBLE_DEVICES="2,0"), [as_id(CARDS[0]), as_id(CARDS[2])])
        self.assertEqual(self.listed("cards=3", CUDA_VISIBLE_DEVICES=CARDS[1]), [as_id(CARDS[1])])
        self.assertEqual(self.listed("cards=2,mig=3", CUDA_VISIBLE_DEVICES=SLICES[1]), [as_id(SLICES[1])])
        self.assertEqual(self.listed("cards=2", CUDA_VISIBLE_DEVICES=""), [])

    def test_doctor_tells_each(self):
        said = self.doctor("--json", "cards=2,mig=1")
        self.assertEqual(said["schema_version"], 1)
        findings = {finding["name"]: finding for finding in said["findings"]}
        self.assertEqual([name for name in findings if name.startswith("card ")], ["card 0", "card 1", "card 1/0"])
        self.assertEqual(findings["card 0"]["state"], "ok")
        self.assertIs(findings["card 0"]["facts"]["mig"], False)
        self.assertEqual((findings["card 1"]["state"], findings["card 1"]["facts"]["persistence"]), ("attention", False))
        self.assertIn("nvidia-smi -pm 1", findings["card 1"]["remedy"])
        self.assertIsNone(findings["card 0"]["facts"]["power_limit_mw"])  # what it does not tell is not 0
        self.assertEqual(findings["card 1/0"]["facts"]["uuid"], SLICES[0])

    def test_ctest_gives_every_test_its_card(self):
        tests = self.folder / "tests"
        tests.mkdir()
        (tests / "test.py").write_text(TEST, encoding="utf-8")
        (tests / "gpus.json").write_text(json.dumps(self.doctor("--ctest-resources", "cards=2,mig=1")), encoding="utf-8")
        lines = []
        for number in range(4):
            lines.append(f'add_test(card{number} python3 -B test.py "{BIN.resolve()}/vramlab" {number}.json)\n'
                         f'set_tests_properties(card{number} PROPERTIES RESOURCE_GROUPS "gpus:1")\n')
        (tests / "CTestTestfile.cmake").write_text("".join(lines), encoding="utf-8")
        done = subprocess.run(["ctest", "--resource-spec-file", "gpus.json", "-j", "8"], cwd=tests, capture_output=True, text=True,
                              timeout=60, check=False,
                              env={**os.environ, "LD_LIBRARY_PATH": str(NVML), "VRAMLAB_HOST_NVML": "cards=2,mig=1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        runs = [json.loads((tests / f"{number}.json").read_text(encoding="utf-8")) for number in range(4)]
        taken = [run["seen"][-1] for run in runs]  # of an instance its card is seen too
        self.assertEqual(sorted(set(taken)), [CARDS[0], SLICES[0]])
        for run in runs:
            self.assertIn(run["seen"], ([CARDS[0]], [CARDS[1], SLICES[0]]))
            beside = [other for other in runs if other is not run and other["begin"] < run["end"] and run["begin"] < other["end"]]
            self.assertTrue(all(other["seen"] != run["seen"] for other in beside), runs)
        # Two at a time: one after the other takes twice as long.
        self.assertTrue(any(a is not b and a["begin"] < b["end"] and b["begin"] < a["end"] for a in runs for b in runs), runs)

    def test_cells_of_a_suite_run_on_a_card_each(self):
        """As vramlab_suite_tests registers them: two cards and an instance, six cells, no two on one at the same time."""
        tests, nvml = self.folder / "tests", "cards=3,mig=1"
        tests.mkdir()
        cells = "".join(f"  - {{batch: {n}, data: 'visible:{tests}/{n} slow:150'}}\n" for n in (1, 2, 3, 4, 5, 6))
        suite = tests / "cards.yaml"
        suite.write_text(f"name: cards\ndefaults: {{case: resnet50, steps: 3, device: cuda}}\ncells:\n{cells}", encoding="utf-8")
        subprocess.run(["cmake", f"-DPROGRAM={BIN.resolve()}/vramlab_obedient", f"-DSUITE={suite}", "-DFILTER=", "-DLABELS=cuda",
                        "-DTIMEOUT=60", "-DLOCK=", f"-DSTORES={tests}/cells", f"-DLIST={tests}/CTestTestfile.cmake",
                        "-P", ROOT / "cmake/ListSuiteTests.cmake"], check=True, capture_output=True, timeout=60)
        (tests / "gpus.json").write_text(json.dumps(self.doctor("--ctest-resources", nvml)), encoding="utf-8")
        done = subprocess.run(["ctest", "--resource-spec-file", "gpus.json", "-j", "8"], cwd=tests, capture_output=True, text=True,
                              timeout=120, check=False, env={**os.environ, "LD_LIBRARY_PATH": str(NVML), "VRAMLAB_HOST_NVML": nvml})
        self.assertEqual((done.returncode, "100% tests passed, 0 tests failed out of 6" in done.stdout), (0, True), done.stdout)
        runs = []
        for number in range(1, 7):
            seen, begin = (tests / str(number)).read_text(encoding="utf-8").split()
            runs.append((seen, int(begin), int(begin) + 450_000_000))  # three steps of 150 ms
        self.assertEqual({seen for seen, _, _ in runs}, {*CARDS[:2], SLICES[0]})
        pairs = [(a, b) for a in runs for b in runs if a < b and a[1] < b[2] and b[1] < a[2]]
        self.assertTrue(pairs, "none ran beside another")
        self.assertFalse([pair for pair in pairs if pair[0][0] == pair[1][0]], "two ran on one card at the same time")

    def test_a_card_that_is_none_is_usage(self):
        self.run_program("doctor", code=2, CTEST_RESOURCE_GROUP_COUNT="1", CTEST_RESOURCE_GROUP_0_GPUS="id:huge,slots:1")


if __name__ == "__main__":
    main()
