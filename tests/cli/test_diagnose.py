"""`vramlab diagnose`: the flow for one cell, a store's diagnoses, exit codes that tell clean from anomalous."""

from program import ProgramTest, main, strict_json

SMALL = ["--case", "resnet50", "--set", "size=32", "--set", "classes=10", "--batch", "4"]


class Diagnose(ProgramTest):
    def test_clean(self):
        shown = self.run_program("diagnose", *SMALL, "--device", "plan").stdout
        for part in ["1 initial state", "2 one step", "3 difference", "4 nothing anomalous"]:
            self.assertIn(part, shown)
        told = strict_json(self.run_program("diagnose", *SMALL, "--device", "cpu", "--json").stdout)
        self.assertEqual(told["anomalies"], [])
        self.assertEqual(told["diagnosis_start_bytes"], told["diagnosis_end_bytes"])

    def test_an_anomaly(self):
        arguments = ["diagnose", *SMALL, "--device", "cpu", "--recipe", "grow=1KiB"]
        shown = " ".join(self.run_program(*arguments, code=1).stdout.split())
        for part in ["4 anomaly: growth, 1024 bytes a step (1.00 KiB)", "op softmax_cross_entropy", "scope loss",
                     "What to do: keep numbers, not tensors"]:
            self.assertIn(part, shown)
        anomaly, = strict_json(self.run_program(*arguments, "--json", code=1).stdout)["anomalies"]
        self.assertEqual((anomaly["kind"], anomaly["bytes"], anomaly["per_step"]), ("growth", 1024, True))

    def test_a_store(self):
        suite = self.suite(
            "name: s\ntitle: t\nhelp: h\ndefaults: {device: plan, case: resnet50, batch: 2, diagnose: true}\n"
            "cells:\n  - recipe: [baseline, copy-weights=fp32]\n  - {recipe: baseline, diagnose: false}\n")
        self.run_program("run", suite, "-o", "store")
        shown = self.run_program("diagnose", "store", code=1).stdout
        self.assertEqual(shown.count("1 initial state"), 2)
        self.assertEqual(shown.count("4 nothing anomalous"), 1)
        self.assertIn("weight-copy", shown)
        told = strict_json(self.run_program("diagnose", "store", "--json", code=1).stdout)
        self.assertEqual([len(cell["anomalies"]) for cell in told], [0, 1])

    def test_bad_usage(self):
        self.refuses("diagnose", says="give --case")
        self.refuses("diagnose", "store", *SMALL, says="a store has its cells already")
        self.refuses("diagnose", "nowhere", says="nowhere")
        self.refuses("diagnose", *SMALL, "--recipe", "keep-recomputed=until-update", says="needs checkpoint or recompute")
        self.refuses("diagnose", *SMALL, "--recipe", "grow=0", says="grow=0: accepted values are a size (1KiB)")
        suite = self.suite("name: s\ntitle: t\nhelp: h\ndefaults: {device: plan, batch: 2}\ncells:\n  - case: resnet50\n")
        self.run_program("run", suite, "-o", "plain")
        self.refuses("diagnose", "plain", says="none of its 1 cells was diagnosed")


if __name__ == "__main__":
    main()
