"""One cell, plans, lists, the doctor, and what bad usage says."""

import ast
import json
import os
import subprocess
import unittest

from program import ProgramTest, main, strict_json

SMALL = ["--case", "resnet50", "--batch", "2", "--set", "size=64"]
PROMISED = """status case micro_batch accumulate ranks global_batch recipe stack device provenance samples_per_s step_s
    needed_bytes peak_allocated_bytes peak_reserved_bytes peak_driver_bytes peak_step_bytes peak_by_category params
    flops_per_step losses error""".split()


class Cells(ProgramTest):
    def test_one_object_with_what_scripts_rely_on(self):
        done = self.run_program("run", *SMALL, "--steps", "2", "--json")
        record = strict_json(done.stdout)
        for key in PROMISED:
            self.assertIn(key, record)
        self.assertEqual(record["status"], "ok")
        self.assertEqual((record["micro_batch"], record["global_batch"]), (2, 2))
        self.assertEqual(record["provenance"], "measured")
        self.assertEqual(len(record["step_times_s"]), 2)
        self.assertEqual(len(record["losses"]), 3)
        self.assertAlmostEqual(record["samples_per_s"], 2 / record["step_s"])
        self.assertEqual(list(self.folder.iterdir()), [], "without -o nothing is written")

    def test_plan_of_the_same_cell_has_the_same_trace(self):
        measured = strict_json(self.run_program("run", *SMALL, "--steps", "1", "--json").stdout)
        planned = strict_json(self.run_program("plan", *SMALL, "--steps", "1", "--json").stdout)
        self.assertEqual(planned["provenance"], "predicted")
        for key in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "events_per_step"):
            self.assertEqual(planned[key], measured[key], key)
        self.assertIsNone(planned["samples_per_s"])
        self.assertIn("samples_per_s", planned["null_reasons"])

    def test_groups_are_checked_by_the_recipe_e1(self):
        for groups in ("0", "-4", "04", "four"):
            self.refuses("plan", *SMALL, "--recipe", f"groups={groups}", says=["groups"])
        # An argument that the case does not have: a result, as everything unsupported.
        record = strict_json(self.run_program("plan", *SMALL, "--recipe", "groups=4", "--json", code=1).stdout)
        self.assertEqual(record["status"], "unsupported")
        self.assertIn("case resnet50 has no argument groups", record["error"])
        unet = ["plan", "--case", "unet3d", "--set", "size=32"]
        self.refuses(*unet, "--recipe", "groups=3", says=["groups=3", "input 32 and output 32"])
        self.refuses(*unet, "--set", "groups=2", "--recipe", "groups=4", says=["groups is set to 2", "groups=4"])
        suite = self.suite("name: grouped\ncells:\n  - case: resnet50\n    batch: 2\n    recipe: groups=0\n")
        self.refuses("plan", suite, says=["suite.yaml", "groups"])

    def test_groups_are_divided_once_e2(self):
        plans = [strict_json(self.run_program("plan", "--case", "unet3d", "--recipe", f"groups={groups}", "--json").stdout)
                 for groups in (1, 4)]
        self.assertEqual([plan["params"] for plan in plans], [16544163, 4890531])
        self.assertEqual(plans[1]["preserves"], "different-model")
        # What is not grouped (the first convolution, those of windows without overlap, the head) stays as it is.
        self.assertTrue(3 < plans[0]["flops_per_step"] / plans[1]["flops_per_step"] < 4)

    def test_groups_run_on_every_instruction_set(self):
        for recipe, sets in (("groups=4 stack=vramlab", ("ALL", "AVX2")), ("groups=4 amp=bf16", ("ALL", "AVX512_CORE"))):
            records = [strict_json(self.run_program("run", "--case", "unet3d", "--set", "size=32", "--steps", "1", "--recipe",
                                                    recipe, "--json", ONEDNN_MAX_CPU_ISA=isa).stdout) for isa in sets]
            for a, b in zip(*(record["losses"] for record in records)):
                self.assertAlmostEqual(a, b, delta=1e-3)

    def test_accumulation_divides_the_batch_f4(self):
        bert = ["--case", "bert-base", "--set", "sequence=16", "--set", "layers=1", "--set", "hidden=32", "--set", "heads=4",
                "--set", "vocabulary=61", "--steps", "2"]
        divided = strict_json(self.run_program("run", *bert, "--batch", "6", "--recipe", "accumulate=3", "--json").stdout)
        self.assertEqual([divided[key] for key in ("micro_batch", "accumulate", "global_batch")], [2, 3, 6])
        self.assertAlmostEqual(divided["samples_per_s"], 6 / divided["step_s"])
        both = strict_json(self.run_program("plan", *bert, "--batch", "6", "--micro-batch", "2", "--json").stdout)
        self.assertEqual((both["recipe"], both["peak_allocated_bytes"]), ("accumulate=3", divided["peak_allocated_bytes"]))
        uneven = strict_json(self.run_program("plan", *bert, "--batch", "24", "--micro-batch", "5", "--json").stdout)
        self.assertEqual([uneven[key] for key in ("micro_batch", "accumulate", "global_batch")], [5, 5, 24])
        halved = [strict_json(self.run_program("plan", *bert, "--batch", "64", "--micro-batch", str(n), "--json").stdout)
                  for n in (32, 16)]
        self.assertEqual([(row["accumulate"], row["micro_batch"], row["global_batch"]) for row in halved],
                         [(2, 32, 64), (4, 16, 64)])
        auto = ["plan", *bert, "--batch", "24", "--recipe", "accumulate=auto"]
        self.refuses(*auto, says="give the capacity")
        self.assertIn("accumulate=1 of 24", self.run_program(*auto, "--capacity", "1GiB").stdout)
        leaking = ["plan", *bert, "--batch", "4", "--recipe", "retain-graph=every-step", "--steps", "6"]
        record = strict_json(self.run_program(*leaking, "--json").stdout)
        self.assertEqual(record["leak_bytes_per_step"], record["leak_named_bytes_per_step"])
        self.assertEqual({record["leak_bytes_per_step"]},
                         {b - a for a, b in zip(record["live_bytes"][1:], record["live_bytes"][2:])})
        self.assertIn(f"of {record['leaks'][0]['name']} in {record['leaks'][0]['scope']}", self.run_program(*leaking).stdout)
        self.refuses("run", *bert, "--batch", "4", "--recipe", "accumulate=3", says="4 samples do not divide into accumulate=3")

    def test_capacity_too_small_is_a_result_with_its_numbers(self):
        done = self.run_program("run", *SMALL, "--capacity", "250MiB", "--json", code=1)
        record = strict_json(done.stdout)
        self.assertEqual(record["status"], "oom")
        self.assertTrue(record["error"])
        self.assertGreater(record["oom_request_bytes"], 0)
        self.assertIn(record["oom_segment"], ("forward", "backward", "update"))

    def test_numbers_are_the_same_in_a_comma_locale_i4(self):
        arguments = ["plan", *SMALL, "--lr", "1234.5", "--json"]
        plain = strict_json(self.run_program(*arguments, LC_ALL="C").stdout)
        locale = self.comma_locale()
        comma = strict_json(self.run_program(*arguments, **locale).stdout)
        self.assertEqual(comma["learning_rate"], 1234.5)
        for changing in ("created_utc", "build_s"):
            plain.pop(changing), comma.pop(changing)
        self.assertEqual(plain, comma)
        suite = self.suite("name: s\ndefaults: {case: resnet50, device: plan}\n"
                           "axes: {batch: [1, 2, 4], recipe: [baseline, amp=bf16]}\n")
        self.run_program("run", suite, "-o", "store", "-q", **locale)
        for command in (["report", "store"], ["report", "store", "-f", "md", "-o", "-"], ["claims", "store"],
                        ["claims", "store", "--format", "json"], ["compare", "store", "store", "--json"],
                        ["export", "store", "-f", "csv"], ["max-batch", *SMALL[:2], "--capacity", "1GiB", "--device", "plan"],
                        ["fit", *SMALL, "--device", "plan", "--capacity", "1.5GiB", "--json"]):
            plain = self.run_program(*command, LC_ALL="C").stdout
            self.assertEqual(self.run_program(*command, **locale).stdout, plain, command)
        for name, environment in (("plain", {"LC_ALL": "C"}), ("comma", locale)):
            self.run_program("plot", "store", "-o", name, **environment)
        figures = sorted((self.folder / "plain").glob("*.dat"))
        self.assertTrue(figures)
        for figure in figures:
            self.assertEqual((self.folder / "comma" / figure.name).read_bytes(), figure.read_bytes(), figure.name)

    def test_stored_with_o_and_kept_with_the_others(self):
        for batch in ("2", "4", "2"):
            self.run_program("plan", "--case", "resnet50", "--set", "size=64", "--batch", batch, "-o", "store", "--timeline")
        journal = self.journal("store")
        self.assertEqual([line["global_batch"] for line in journal[1:]], [2, 4, 2])
        self.assertTrue((self.folder / "store/results.h5").exists())
        self.assertEqual(len(list((self.folder / "store/cells").iterdir())), 2)


class Usage(ProgramTest):
    def test_no_command_and_unknown_ones(self):
        self.refuses(says="COMMAND")
        self.refuses("runn", says="runn")

    def test_help_everywhere(self):
        for command in ("list", "run", "plan", "max-batch", "fit", "replay", "graph", "report", "claims", "plot", "doctor"):
            self.assertIn("--help", self.run_program(command, "--help").stdout + "--help")
        self.assertIn("max-batch", self.run_program("help").stdout)
        self.assertIn("vramlab", self.run_program("--version").stdout)

    def test_bad_cells_are_usage_errors(self):
        self.refuses("run", "--case", "resnet5000", says="resnet50")
        self.refuses("run", *SMALL[:2], "--recipe", "amp=fp99", says="fp99")
        self.refuses("run", *SMALL[:2], "--recipe", "ampp=bf16", says="ampp")
        self.refuses("run", *SMALL[:2], "--batch", "0", says="0")
        self.refuses("run", *SMALL[:2], "--batch", "-4", says="-4")
        self.refuses("run", *SMALL[:2], "--batch", "many", says="many")
        self.refuses("run", *SMALL[:2], "--steps", "0", says="0")
        self.refuses("run", *SMALL[:2], "--warmup", "0", says="0")
        self.refuses("run", *SMALL[:2], "--capacity", "lots", says=["lots", "GiB"])
        self.refuses("run", *SMALL[:2], "--set", "width=3", says="width")
        self.refuses("run", *SMALL[:2], "--set", "size", says="KEY=VALUE")
        self.refuses("run", *SMALL[:2], "--device", "tpu", says="tpu")
        self.refuses("run", *SMALL[:2], "--batch", "4", "--micro-batch", "9", says="--micro-batch 9 is more than the --batch 4")
        self.refuses("run", *SMALL[:2], "--data", "nowhere.h5", says="nowhere.h5")
        self.refuses("run", *SMALL[:2], "--recipe", "", "--recipe", "amp=bf16", says="one recipe")
        self.refuses("plan", *SMALL[:2], "--device", "cpu", says="run")
        self.refuses("run", says="suite")
        self.refuses("run", "nosuchsuite", says="quick")
        self.refuses("run", *SMALL[:2], "--nonsense", says="nonsense")
        self.refuses("plan", *SMALL[:2], "--profile", "TPU-v9", says="TPU-v9")

    def test_stores_that_are_none(self):
        (self.folder / "text.h5").write_text("not HDF5", encoding="utf-8")
        for command in ("report", "claims"):
            self.refuses(command, "text.h5", says="text.h5")
            self.refuses(command, "nowhere", says="nowhere")
        self.refuses("report", says="vramlab-results/latest")
        # Claims are listed also where nothing has run, and none is decided.
        listed = self.run_program("claims", "--json")
        self.assertIn("no claim has evidence", listed.stderr)
        verdicts = {claim["verdict"] for claim in strict_json(listed.stdout)}
        self.assertEqual(verdicts, {"undecided", "untestable"})

    def test_cuda_without_a_gpu_is_skipped_j4(self):
        doctor = self.run_program("doctor", "--json").stdout
        states = {finding["name"]: finding["state"] for finding in strict_json(doctor)["findings"]}
        if states["device cuda"] == "ok":
            self.skipTest("there is a GPU")
        self.refuses("run", *SMALL, "--device", "cuda", says="cuda", code=77)


PEER = {"case": "resnet50", "batch": 16, "amp": "bf16", "ckpt": 0, "samples_per_s": 20.5, "step_s": 0.78, "params": 25557032,
        "base_rss_bytes": 500000000, "peak_rss_bytes": 1700000000, "threads": 2, "torch": "2.14.1", "malloc": "keep",
        "compile": False, "channels_last": True, "losses": [7.1, 7.0, 6.9]}


class Import(ProgramTest):
    def give(self, text, *options, code=0):
        done = subprocess.run(self.command("import", *options), cwd=self.folder, input=text, capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_peer_stands_beside_ours(self):
        ours = self.run_program("plan", *SMALL, "--json").stdout
        self.give(ours, "--store", "store")
        for repeat in ("0", "1", "1"):
            self.give(json.dumps(PEER), "--store", "store", "--repeat", repeat)
        lines = self.journal("store")[1:]
        self.assertEqual([line["engine"] for line in lines], ["vramlab", "torch", "torch", "torch"])
        self.assertEqual(len({line["cell_key"] for line in lines}), 3)  # the same repetition again supersedes
        peer = lines[1]
        self.assertEqual((peer["peak_step_bytes"], peer["samples_per_s"], peer["recipe"], peer["losses"]),
                         (1200000000, 20.5, "amp=bf16", PEER["losses"]))
        self.assertEqual(peer["library"], "PyTorch 2.14.1 eager channels-last malloc=keep")

    def test_peer_on_a_gpu(self):
        line = {key: value for key, value in PEER.items() if "rss" not in key and key != "malloc"}
        line.update(case="bert-base", amp=None, tf32=True, seq=512, size=0, cudnn_benchmark=True, gpu="NVIDIA H200",
                    base_driver_bytes=1000, peak_driver_bytes=5000, peak_allocated_bytes=3000, peak_reserved_bytes=3500)
        self.give(json.dumps(line), "--store", "store")
        peer = self.journal("store")[1]
        self.assertEqual((peer["device"], peer["hardware"], peer["settings"], peer["recipe"], peer["threads"]),
                         ("cuda", "NVIDIA H200", "sequence=512", "precision=tf32", None))
        self.assertEqual((peer["base_bytes"], peer["peak_step_bytes"], peer["peak_allocated_bytes"], peer["peak_reserved_bytes"]),
                         (1000, 4000, 3000, 3500))
        self.assertEqual(peer["library"], "PyTorch 2.14.1 eager channels-last cudnn-benchmark")

    def test_store_may_be_an_empty_directory_but_not_another_kind(self):
        os.mkdir(os.path.join(self.folder, "empty"))
        self.give(json.dumps(PEER), "--store", "empty")
        self.assertEqual(len(self.journal("empty")), 2)
        os.mkdir(os.path.join(self.folder, "foreign"))
        with open(os.path.join(self.folder, "foreign", "letter.txt"), "w", encoding="utf-8") as letter:
            letter.write("dear reader")
        self.assertIn("foreign: not empty", self.give(json.dumps(PEER), "--store", "foreign", code=2).stderr)

    def test_both_engines_are_reported_with_their_ratios(self):
        ours = strict_json(self.run_program("plan", *SMALL, "--recipe", "amp=bf16", "--json").stdout)
        ours.update(settings=None, device="cpu", provenance="measured", micro_batch=16, global_batch=16, threads=2,
                    samples_per_s=41.0, step_s=0.39, peak_step_bytes=600000000)
        for record in (ours, PEER):
            self.give(json.dumps(record), "--store", "store")
        for form in ("term", "md", "html"):
            shown = self.run_program("report", "store", "--format", form, "--output", f"report.{form}")
            text = (self.folder / f"report.{form}").read_text(encoding="utf-8")
            for part in ("PyTorch 2.14.1 eager", "beside other engines", "torch", "0.50", "2.00", "41.00", "20.50"):
                self.assertIn(part, text, shown.stderr)

    def test_what_is_neither_is_refused_and_nothing_made(self):
        for text in ("", "{", "[]", "{}", json.dumps({**PEER, "samples_per_s": "fast"}),
                     json.dumps({**PEER, "case": "resnet51"}), json.dumps({**PEER, "groups": 4})):
            self.assertIn("vramlab: ", self.give(text, "--store", "store", code=2).stderr)
        self.assertFalse((self.folder / "store").exists())
        self.give("{}", code=2)


class Lists(ProgramTest):
    def test_by_name_and_synonym(self):
        self.assertIn("resnet50", self.run_program("list", "cases").stdout)
        self.assertIn("amp", self.run_program("list", "optimizations").stdout)
        found = strict_json(self.run_program("list", "gradient checkpointing", "--json").stdout)
        self.assertIn("checkpoint", [entry["name"] for entry in found["optimizations"]])
        self.assertIn("quick", self.run_program("list", "suites").stdout)
        for synonym, name in (("bitsandbytes", "optimizer-state"), ("cut cross entropy", "loss-chunks"), ("LOMO", "update"),
                              ("requires_grad", "freeze"), ("ResNeXt", "groups")):
            found = strict_json(self.run_program("list", synonym, "--json").stdout)
            self.assertIn(name, [entry["name"] for entry in found["optimizations"]])
        self.refuses("list", "flux capacitor", says="flux capacitor")

    def test_what_to_write_in_pytorch_is_python(self):
        for entry in strict_json(self.run_program("list", "optimizations", "--json").stdout)["optimizations"]:
            line = entry["turn_on"]
            if not line.startswith("no equivalent"):
                ast.parse(line + "\n  pass" if line.startswith("with ") else line)

    def test_graphs_in_each_format(self):
        for form, part in (("text", "conv"), ("dot", "digraph"), ("json", "{"), ("schedule", "")):
            self.assertIn(part, self.run_program("graph", "resnet50", "--set", "size=64", "--format", form).stdout)
        backward = self.run_program("graph", "resnet50", "--recipe", "amp=bf16").stdout
        forward = self.run_program("graph", "resnet50", "--forward").stdout
        self.assertGreater(len(backward), len(forward))
        self.refuses("graph", "resnet50", "--format", "png", says="schedule")

    def test_doctor_ends_well_whatever_it_finds(self):
        self.assertIn("device cpu", self.run_program("doctor").stdout)
        without = {"VRAMLAB_MODULES": "/nonexistent", "PATH": "/nonexistent", "CUDA_VISIBLE_DEVICES": "1gpu"}
        said = self.run_program("doctor", **without).stdout
        self.assertRegex(said, "(?m)^device cpu +missing: ")
        self.assertRegex(said, "(?m)^gnuplot +missing: .*\n +-> apt-get install gnuplot-nox")
        self.assertRegex(said, "(?m)^cards +missing: CUDA_VISIBLE_DEVICES=1gpu")
        resources = strict_json(self.run_program("doctor", "--ctest-resources").stdout)
        self.assertEqual(resources["version"], {"major": 1, "minor": 0})

    def test_doctor_for_programs(self):
        said = strict_json(self.run_program("doctor", "--json").stdout)
        self.assertEqual(said["schema_version"], 1)
        findings = {finding["name"]: finding for finding in said["findings"]}
        for name in ("vramlab", "processor", "instructions", "memory", "limits", "huge pages", "system", "HDF5", "jansson",
                     "libyaml", "hwloc", "libcrypto", "nifticlib", "device cpu", "gnuplot", "git", "nvcc", "MPI", "Slurm", "GPU",
                     "cuDNN", "cuBLAS", "NCCL", "device cuda"):
            self.assertIn(name, findings)
        for finding in findings.values():
            self.assertIn(finding["state"], ("ok", "attention", "missing", "absent"))
            self.assertTrue(finding["detail"])
            self.assertTrue(finding["state"] == "ok" or finding.get("remedy"), finding)
        processor, memory = findings["processor"]["facts"], findings["memory"]["facts"]
        self.assertEqual(processor["allowed_threads"], len(os.sched_getaffinity(0)))
        self.assertTrue(0 <= memory["available_bytes"] <= memory["total_bytes"])
        pinned = subprocess.run(["taskset", "-c", str(min(os.sched_getaffinity(0))), *self.command("doctor", "--json")],
                                capture_output=True, text=True, check=True).stdout
        (processor,) = [finding["facts"] for finding in strict_json(pinned)["findings"] if finding["name"] == "processor"]
        self.assertEqual(processor["allowed_threads"], 1)


class MaxBatch(ProgramTest):
    def test_each_recipe_and_capacity(self):
        done = self.run_program("max-batch", "--case", "resnet50", "--set", "size=64", "--recipe", "baseline", "--recipe",
                                "checkpoint=1", "--capacity", "400MiB", "--capacity", "1GiB", "--json")
        rows = strict_json(done.stdout)["rows"]
        self.assertEqual(len(rows), 4)
        for row in rows:
            self.assertGreater(row["batch"], 0)
            self.assertLessEqual(row["needed_bytes"], row["capacity_bytes"])
        self.assertGreater(rows[1]["batch"], rows[0]["batch"])

    def test_largest_one_runs_and_the_next_does_not(self):
        done = self.run_program("max-batch", "--case", "resnet50", "--set", "size=64", "--capacity", "400MiB", "--verify",
                                "--steps", "1", "--json")
        row = strict_json(done.stdout)["rows"][0]
        self.assertEqual((row["verified"], row["verified_next"]), ("ok", "oom"))

    def test_none_fits(self):
        self.assertIn("not even one", self.run_program("max-batch", "--case", "resnet50", "--capacity", "1MiB").stdout)


class Fit(ProgramTest):
    SMALL_BERT = ["--case", "bert-base", "--set", "layers=4", "--set", "hidden=64", "--set", "heads=2", "--set", "vocabulary=512"]

    def fit(self, *arguments, code=0):
        return strict_json(self.run_program("fit", *self.SMALL_BERT, "--global-batch", "64", *arguments, "--json", code=code).stdout)

    def plan(self, recipe, *arguments, code=0):
        return strict_json(self.run_program("plan", *self.SMALL_BERT, "--batch", "64", "--recipe", recipe, *arguments, "--json",
                                            code=code).stdout)

    def test_rungs_say_what_plan_says(self):
        found = self.fit("--capacity", "1GiB", "--all")
        self.assertEqual((found["recipe"], found["rungs"][0]["recipe"]), ("baseline", "baseline"))
        climbed = [rung for rung in found["rungs"] if rung["end"] != "refused"]
        self.assertEqual(climbed[1]["recipe"], "allocator=expandable")
        self.assertIn("amp=bf16", climbed[3]["recipe"])
        for rung in climbed:
            planned = self.plan(rung["recipe"], "--capacity", "1GiB")
            for key in ("needed_bytes", "needed_low_bytes", "flops_per_step", "recompute_flops"):
                self.assertEqual(rung[key], planned[key], (rung["recipe"], key))
            self.assertEqual(rung["results"], planned["preserves"])
            self.assertEqual(rung["headroom_bytes"], found["capacity_bytes"] - rung["needed_bytes"])
        kept = [rung["needed_bytes"] for rung in found["rungs"] if rung["end"] == "fits"]
        self.assertEqual(kept, sorted(set(kept), reverse=True))
        self.assertTrue(any(rung["extra_flops_ratio"] > 0 for rung in climbed))

    def test_answer_runs_and_the_rung_before_does_not(self):
        baseline = self.plan("baseline")["needed_bytes"]
        found = self.fit("--capacity", str(baseline * 3 // 4))
        self.assertIn(found["recipe"], found["command"])
        self.assertEqual(found["rungs"][-1]["recipe"], found["recipe"])
        for rung in [rung for rung in found["rungs"] if rung["end"] != "refused"]:
            planned = self.plan(rung["recipe"], "--capacity", str(baseline * 3 // 4), code=0 if rung["fits"] else 1)
            self.assertEqual(planned["status"], "ok" if rung["fits"] else "oom")
        self.assertEqual(found["rungs"][0]["needed_bytes"], baseline)

    def test_none_fits_and_the_largest_batch_does(self):
        floor = self.fit("--capacity", "1GiB", "--all")["rungs"]
        capacity = min(rung["needed_bytes"] for rung in floor if rung["needed_bytes"]) // 2
        found = self.fit("--capacity", str(capacity), code=1)
        self.assertIsNone(found["recipe"])
        largest, part = found["largest"], found["accumulation"]
        self.assertTrue(0 < largest["batch"] < 64)
        self.assertLessEqual(max(largest["needed_bytes"], part["needed_bytes"]), capacity)
        self.assertIn(f"accumulate={part['accumulate']}", part["recipe"])
        self.assertEqual(part["accumulate"], -(-64 // part["micro_batch"]))
        planned = self.plan(part["recipe"], "--capacity", capacity)
        self.assertEqual((planned["needed_bytes"], planned["micro_batch"]), (part["needed_bytes"], part["micro_batch"]))
        table = self.run_program("fit", *self.SMALL_BERT, "--global-batch", "64", "--capacity", capacity, code=1).stdout
        self.assertIn(f"{largest['batch']} samples", table)
        self.assertIn("accumulated", table)

    def test_table_is_narrow_and_says_how_to_turn_on(self):
        table = self.run_program("fit", *self.SMALL_BERT, "--global-batch", "64", "--capacity", "1GiB", "--all").stdout
        self.assertLessEqual(max(len(line) for line in table.splitlines() if not line.startswith("Next:")), 100)
        for part in ("within tolerance", "torch.autocast", "torch.utils.checkpoint", "Next:   vramlab run --case bert-base"):
            self.assertIn(part, table)

    def test_card_on_paper_has_an_interval_whose_upper_end_counts(self):
        found = self.fit("--profile", "V100-32GB")
        self.assertGreater(found["rungs"][0]["needed_bytes"], found["rungs"][0]["needed_low_bytes"])
        self.assertIn("--profile V100-32GB", found["command"])
        between = (found["rungs"][0]["needed_bytes"] + found["rungs"][0]["needed_low_bytes"]) // 2
        self.assertFalse(self.fit("--profile", "V100-32GB", "--capacity", str(between), code=1)["rungs"][0]["fits"])
        # what would need more than the card has is told too
        more = strict_json(self.run_program("fit", "--case", "bert-base", "--batch", "60000", "--profile", "V100-32GB", "--json",
                                            code=1).stdout)
        self.assertGreater(more["rungs"][0]["needed_bytes"], more["capacity_bytes"])
        # half precision is what the card multiplies
        self.assertEqual([rung["step"] for rung in more["rungs"] if str(rung["step"]).startswith("amp=")], ["amp=fp16"])

    def test_what_a_case_refuses_is_skipped_with_the_reason(self):
        found = self.fit("--recipe", "accumulate=2", "--capacity", "4GiB", "--all")
        refused = [rung for rung in found["rungs"] if rung["end"] == "refused"]
        self.assertIn("update=in-backward", [rung["step"] for rung in refused])
        for rung in refused:
            self.assertTrue(rung["reason"])
            self.assertIsNone(rung["needed_bytes"])

    def test_blocks_to_checkpoint_are_chosen_for_the_capacity(self):
        """Of the runs that fit the ones with the fewest extra FLOPs: fewer with more room, none of all with enough."""
        base = self.fit("--recipe", "attention=fused", "--all", "--capacity", "64GiB")
        rungs = {rung["step"]: rung for rung in reversed(base["rungs"])}  # each when it was first tried
        self.assertEqual(rungs["checkpoint=auto"]["checkpoint_chosen"], "segments:1")
        extra, most = [], rungs["checkpoint=auto"]["needed_bytes"]
        for share in (0.8, 0.6):
            found = strict_json(self.run_program("plan", *self.SMALL_BERT, "--batch", "64", "--capacity", int(most * share),
                                                 "--recipe", rungs["checkpoint=auto"]["recipe"], "--json").stdout)
            self.assertLessEqual(found["needed_bytes"], most * share)
            self.assertRegex(found["checkpoint_chosen"], "^runs:")
            extra.append(found["recompute_flops"])
        self.assertTrue(0 < extra[0] < extra[1])

    def test_bad_input(self):
        self.refuses("fit", "--batch", "4", says="--case")
        self.refuses("fit", "--case", "bert-base", says="--global-batch")
        self.refuses("fit", "--case", "bert-bass", "--batch", "4", says=["bert-bass", "bert-base", "resnet50"])
        self.refuses("fit", "--case", "bert-base", "--batch", "0", says=["0", "1"])
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--capacity", "lots", says=["lots", "GiB"])
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--capacity", "0", says="0")
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--micro-batch", "2", says="fixed")
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--device", "cpu", says="plans")
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--recipe", "amp=fp99", says="fp99")
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--profile", "TPU-v9", says=["TPU-v9", "V100-32GB"])
        self.refuses("fit", "--case", "bert-base", "--batch", "4", "--profile", "V100-32GB", "--capacity", "64GiB", says="V100-32GB")


if __name__ == "__main__":
    main()
