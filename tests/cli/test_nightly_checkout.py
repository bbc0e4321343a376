"""scripts/nightly in a checkout of its own: updates that fail, builds that fail, what a dashboard gets, and cards as
resources. The checkout has the real scripts, a build of a few lines and the real program."""

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import unittest
import xml.etree.ElementTree as xml
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from program import BIN, ProgramTest, main

ROOT = Path(__file__).resolve().parents[2]
NVML = BIN.resolve().parent / "bin-host-card"
LISTS = """cmake_minimum_required(VERSION 3.22)
project(checkout NONE)
include(CTest)
if(NOT EXISTS "${PROJECT_BINARY_DIR}/bin")
  file(CREATE_LINK "%s" "${PROJECT_BINARY_DIR}/bin" SYMBOLIC)
endif()
install(FILES CMakeLists.txt DESTINATION share)
add_custom_target(program ALL COMMAND %s)
add_test(passes true)
foreach(i RANGE 1 4)
  add_test(NAME card${i} COMMAND sh "${PROJECT_SOURCE_DIR}/card.sh" ${i})
  set_tests_properties(card${i} PROPERTIES RESOURCE_GROUPS gpus:1)
  if(NOT CTEST_RESOURCE_SPEC_FILE)
    set_tests_properties(card${i} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endforeach()
"""
# Ends well when three have begun: of three cards at the same time, else only where they ran before.
CARD = """echo "$CTEST_RESOURCE_GROUP_0_GPUS" >card$1
for try in $(seq 600); do
  [ $(ls card? | wc -l) -ge 3 ] && exit 0
  sleep 0.1
done
exit 1
"""
PRESETS = '{"version": 4, "configurePresets": [{"name": "cpu", "binaryDir": "${sourceDir}/build/cpu"}]}'
SUITE = """name: small
title: Small
help: Two cells.
defaults: {device: plan, batch: 2, case: resnet50, settings: {size: 64}}
cells:
  - {}
  - {capacity: 150MiB}
"""


class Dashboard(ThreadingHTTPServer):
    """Takes what CDash takes, or answers as told."""

    def __init__(self, code=200, answer="<cdash><status>OK</status><message></message></cdash>"):
        self.got, self.code, self.answer = {}, code, answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):  # what http.server calls it; pylint: disable=invalid-name
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.got[self.path] = body
                self.send_response(server.code)
                self.end_headers()
                self.wfile.write(server.answer.encode())

            do_POST = do_PUT  # pylint: disable=invalid-name

            def log_message(self, *_arguments):  # pylint: disable=arguments-differ
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/submit.php?project=vramlab"

    def __exit__(self, *_arguments):
        self.shutdown()
        self.server_close()


class Checkout(ProgramTest):
    def setUp(self):
        super().setUp()
        self.upstream, self.checkout = self.folder / "upstream", self.folder / "checkout"
        (self.upstream / "scripts").mkdir(parents=True)
        for name in ("nightly", "nightly.cmake", "nightly_summary.py"):
            shutil.copy(ROOT / "scripts" / name, self.upstream / "scripts")
        (self.upstream / "card.sh").write_text(CARD, encoding="utf-8")
        (self.upstream / "CMakePresets.json").write_text(PRESETS, encoding="utf-8")
        (self.upstream / ".gitignore").write_text("/build/\n", encoding="utf-8")
        self.git("init", "-q", "-b", "main")
        self.commit("true")
        subprocess.run(["git", "clone", "-q", self.upstream, self.checkout], check=True, timeout=60)
        (self.folder / "small.yaml").write_text(SUITE, encoding="utf-8")

    def git(self, *arguments, at=None):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=at or self.upstream, check=True,
                       capture_output=True, timeout=60)

    def commit(self, command, at=None):
        """A version of the code whose build runs the command."""
        at = at or self.upstream
        (at / "CMakeLists.txt").write_text(LISTS % (BIN.resolve(), command), encoding="utf-8")
        self.git("add", ".", at=at)
        self.git("commit", "-q", "-m", f"builds with {command}", at=at)

    def head(self, at):
        return subprocess.run(["git", "describe", "--always"], cwd=at, capture_output=True, text=True, check=True).stdout.strip()

    def night(self, name, *more, code=0, tests="^passes$", **environment):
        done = subprocess.run(
            [sys.executable, self.checkout / "scripts/nightly", "-d", "nights", "--baselines", "kept", "--night", name, "--tests",
             tests, "--suites", "./small.yaml", *more], cwd=self.folder, capture_output=True, text=True, timeout=250, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), **environment})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertLessEqual(len(done.stdout.splitlines()), 15)
        self.directory = self.folder / "nights" / name
        return done.stdout

    # ---- Updates ----

    def test_the_night_is_of_the_newest_code(self):
        self.night("2026-01-01")
        self.commit("echo newer")
        self.assertIn(self.head(self.upstream), self.night("2026-01-02"))
        self.assertEqual(json.loads((self.folder / "nights/last-good/night.json").read_text(encoding="utf-8")),
                         {"night": "2026-01-02", "commit": self.head(self.upstream)})

    def test_a_night_without_an_update_goes_on_with_the_code_it_has(self):
        self.night("2026-01-01")
        old = self.head(self.checkout)
        self.commit("echo newer")
        moved = self.upstream.rename(self.folder / "no-network")
        said = self.night("2026-01-02", code=1)
        self.assertIn("NOT UPDATED", said)
        self.assertIn(old, said.splitlines()[0])
        self.assertRegex(said, r"\nnot updated: git pull ended with code 1: fatal: .*upstream")
        self.assertIn("1 of 2 cells ok, 1 oom; 0 regressed", said)  # and measures
        moved.rename(self.upstream)
        # A change of somebody's in the checkout that the update would overwrite.
        (self.checkout / "CMakeLists.txt").write_text(LISTS % (BIN.resolve(), "echo mine"), encoding="utf-8")
        said = self.night("2026-01-03", code=1)
        self.assertRegex(said, r"\nnot updated: git pull ended with code 1: error: Your local changes .* would be overwritten")
        self.assertIn(f"{old}-dirty", said.splitlines()[0])
        self.assertIn("echo mine", (self.checkout / "CMakeLists.txt").read_text(encoding="utf-8"))
        # And one that was committed.
        self.git("checkout", "-q", "CMakeLists.txt", at=self.checkout)
        self.commit("echo mine", at=self.checkout)
        said = self.night("2026-01-04", code=1)
        self.assertRegex(said, r"\nnot updated: git pull ended with code 128: fatal: Not possible to fast-forward")
        self.git("reset", "-q", "--hard", "HEAD~1", at=self.checkout)
        self.assertIn("all is well", self.night("2026-01-05"))

    def test_a_night_that_goes_on_stays_with_its_code(self):
        self.night("2026-01-01")
        (self.directory / "facts.json").unlink()  # as if it had been stopped after its cells
        self.commit("echo newer")
        self.assertNotIn(self.head(self.upstream), self.night("2026-01-01"))
        self.assertIn(self.head(self.upstream), self.night("2026-01-02"))

    # ---- Builds ----

    def test_code_that_does_not_build_is_not_measured(self):
        self.night("2026-01-01")
        (self.upstream / "said").write_text("a.c:3:1: error: no such thing\n", encoding="utf-8")
        self.commit("cmake -E cat ${PROJECT_SOURCE_DIR}/said && false")
        said = self.night("2026-01-02", code=1)
        self.assertIn("BROKEN", said)
        self.assertIn("\nproblem: the code does not build: a.c:3:1: error: no such thing\n", said)
        self.assertFalse((self.directory / "small").exists())
        self.assertIsNotNone(xml.parse(self.directory / "drop/Build.xml").getroot().find(".//Error"))
        self.commit("true\nmessage(FATAL_ERROR nonsense)\nadd_custom_target(more")
        self.assertIn("the code does not build: CMake Error", self.night("2026-01-02", code=1))
        self.commit("true")  # mended: the same night is tried again
        self.assertIn("all is well", self.night("2026-01-02"))

    # ---- The dashboard ----

    def test_what_a_dashboard_would_get(self):
        self.night("2026-01-01")
        parts = {path.name: xml.parse(path).getroot() for path in (self.directory / "drop").glob("*.xml")}
        self.assertEqual(set(parts), {f"{name}.xml" for name in ("Update", "Configure", "Build", "Test", "Notes", "Done")})
        self.assertEqual({root.get("BuildName") for root in parts.values() if root.tag == "Site"}, {"nightly cpu"})
        self.assertEqual(len({root.get("BuildStamp") for root in parts.values() if root.tag == "Site"}), 1)
        revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.checkout, capture_output=True, text=True, check=True)
        self.assertEqual(parts["Update.xml"].findtext("Revision"), revision.stdout.strip())
        self.assertIn("all is well", parts["Notes.xml"].findtext(".//Note/Text"))
        cells = {path.name: xml.parse(path).getroot() for path in (self.directory / "drop/small").glob("*.xml")}
        self.assertEqual(set(cells), {"Test.xml", "Notes.xml", "Upload.xml", "Done.xml"})
        tests = {test.findtext("Name"): test for test in cells["Test.xml"].iter("Test") if test.find("Name") is not None}
        ok, out, figures = tests.values()
        numbers = [{each.get("name"): each.findtext("Value") for each in test.iter("NamedMeasurement")} for test in (ok, out, figures)]
        records = {record["status"]: record for record in self.journal("nights/2026-01-01/small")[1:]}
        self.assertEqual(int(numbers[0]["needed_bytes"]), records["ok"]["needed_bytes"])
        self.assertEqual((out.get("Status"), numbers[1]["status"]), ("passed", "oom"))
        self.assertEqual(int(numbers[1]["oom_request_bytes"]), records["oom"]["oom_request_bytes"])
        if shutil.which("gnuplot"):
            self.assertTrue(base64.b64decode(numbers[2]["needed"]).startswith(b"\x89PNG"))
        files = {os.path.basename(file.get("filename")): file for file in cells["Upload.xml"].iter("File")}
        self.assertTrue(base64.b64decode(files["report.html"].findtext("Content")).startswith(b"<!DOCTYPE html>"))

    def test_a_dashboard_gets_it(self):
        with Dashboard() as dashboard:
            said = self.night("2026-01-01", "--cdash", dashboard.url())
        self.assertIn("all is well", said)
        self.assertNotIn("warning", said)
        parts = [path.split("FileName=")[1].split("&")[0].rsplit("___", 1)[-1] for path in dashboard.got]
        self.assertTrue(all(path.startswith("/submit.php?project=vramlab&") for path in dashboard.got), list(dashboard.got))
        self.assertEqual(sorted(part.split("XML---")[-1] for part in parts if "Test" in part), ["Test.xml", "Test.xml"], parts)
        for body in dashboard.got.values():
            xml.fromstring(body)

    def test_a_dashboard_that_takes_nothing_loses_no_night(self):
        (self.checkout / "build/cpu").mkdir(parents=True)
        (self.checkout / "build/cpu/bin").symlink_to(BIN.resolve())
        answers = [(500, "no"), (200, "<cdash><status>ERROR</status><message>no such project</message></cdash>")]
        for number, answer in enumerate(answers, 1):
            with Dashboard(*answer) as dashboard:
                said = self.night(f"2026-01-0{number}", "--cdash", dashboard.url(), "--no-tests", "--no-build")
            self.assertTrue(dashboard.got)
            self.assertIn("all is well", said)
            self.assertIn(f"warning: {dashboard.url()} did not take the results", said)
            self.assertTrue((self.directory / "facts.json").exists() and (self.directory / "drop/small/Test.xml").exists())
        said = self.night("2026-01-03", "--cdash", "http://127.0.0.1:9/submit.php?project=vramlab", "--no-tests", "--no-build")
        self.assertIn("did not take", said)

    # ---- Cards ----

    def test_tests_of_cards_share_the_cards(self):
        environment = {"LD_LIBRARY_PATH": str(NVML), "VRAMLAB_HOST_NVML": "cards=3,mig=1"}
        self.night("2026-01-01", tests="^card", **environment)
        spec = json.loads((self.directory / "gpus.json").read_text(encoding="utf-8"))
        ids = [card["id"] for card in spec["local"][0]["gpus"]]
        self.assertEqual([card.split("_")[0] for card in ids], ["gpu", "gpu", "mig"])
        held = {(self.checkout / f"build/cpu/card{number}").read_text(encoding="utf-8").strip() for number in range(1, 5)}
        self.assertEqual(held, {f"id:{card},slots:1" for card in ids})
        # Cards that are gone: no file names any, tests wait for each other again.
        self.night("2026-01-02", tests="^card")
        said = [(self.checkout / f"build/cpu/card{number}").read_text(encoding="utf-8").split() for number in range(1, 5)]
        self.assertEqual(said, [[]] * 4)


if __name__ == "__main__":
    main()
