"""scripts/bundle: what it makes is small enough, and builds and runs where there is no pkg-config and no library of ours."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C"}


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def without_network():
    """The command that takes the network away, where this machine lets us."""
    command = ["unshare", "--map-root-user", "--net"]
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


class Bundle(unittest.TestCase):
    def test_bundle_builds_and_runs_by_itself(self):
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch, "bundle.tar.xz")
            made = subprocess.run([ROOT / "scripts/bundle", "-o", archive], capture_output=True, text=True, check=False)
            if made.returncode == 3:
                self.skipTest(made.stderr.strip())
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertLess(archive.stat().st_size, 60 << 20)
            print(made.stdout.strip(), file=sys.stderr)
            run("cmake", "-E", "tar", "xf", archive, cwd=scratch, env=SYSTEM)
            (tree,) = [path for path in Path(scratch).iterdir() if path.is_dir()]
            alone = {"cwd": tree, "env": SYSTEM}
            run("cmake", "--preset", "cpu", "-DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON", "-DVRAMLAB_CUDA=OFF",
                "-DBUILD_TESTING=OFF", **alone)
            run(*without_network(), "cmake", "--build", "--preset", "cpu", "--parallel", os.cpu_count(), "--target", "vramlab",
                "vramlab_cpu", **alone)
            program = tree / "build/cpu/bin/vramlab"
            libraries = run("ldd", program, **alone)
            for name in ("hdf5", "jansson", "yaml", "crypto", "curl", "hwloc", "not found"):
                self.assertNotIn(name, libraries)
            self.assertIn(str(tree), run("ldd", tree / "build/cpu/bin/vramlab_cpu.so", **alone))
            commit = run("git", "rev-parse", "HEAD", cwd=ROOT)[:12]
            doctor = run(*without_network(), program, "doctor", **alone)
            self.assertIn(f"commit {commit}", doctor)
            self.assertRegex(doctor, "(?m)^device cpu +oneDNN")
            run(*without_network(), program, "run", "quick", "--steps", "1", "--filter", "cpu (baseline|amp=bf16)$", "-o", "store",
                **alone)
            self.assertTrue((tree / "store/results.h5").exists())
            self.assertTrue((tree / "store/report.html").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
