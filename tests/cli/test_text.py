"""From text to a trained BERT: what text.py makes of strings and files, and what the program says to its files."""

import hashlib
import importlib.util
import random
import subprocess
import sys
import unittest
from pathlib import Path

from program import ProgramTest, main, strict_json

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/data/text.py"
try:
    import h5py

    import tokenizers  # noqa: F401, what text.py needs
except ImportError as error:
    print(f"skipped: {error} (scripts/peers/setup installs what scripts/data needs)", file=sys.stderr)
    sys.exit(77)
specification = importlib.util.spec_from_file_location("text", SCRIPT)
text = importlib.util.module_from_spec(specification)
specification.loader.exec_module(text)

WORDS = "the of to a in is that value returns file name list object if string not this for with be".split()


class Tokens(unittest.TestCase):
    """Known hard strings; the first ones are those of BERT's own tests."""

    vocabulary = text.SPECIAL + (
        "want ##want ##ed wa un runn ##ing , low ##er the lowest hello HeLLo ! how Are are yoU you ? ah zz 博 推 ab cafe "
        "naive Héllo don ' t $ 5 . 00 [ mask ] ##ß strasse i a ##a b straße ü ##x 한 국 ॥").split()

    def check(self, string, expected, lower_case=True):
        encoded = text.make_tokenizer(self.vocabulary, lower_case).encode(string, add_special_tokens=False)
        self.assertEqual(encoded.tokens, expected.split(), string)
        self.assertEqual(encoded.ids, [self.vocabulary.index(token) for token in expected.split()])

    def test_longest_pieces_first(self):
        self.check("unwanted running", "un ##want ##ed runn ##ing")
        self.check("unwantedQ running", "[UNK] runn ##ing")
        self.check("UNwant\u00E9d,running", "un ##want ##ed , runn ##ing")
        self.check("lowest lower", "lowest low ##er")
        self.check("", "")

    def test_white_space_and_case(self):
        self.check(" \tHeLLo!how  \n Are yoU?  ", "hello ! how are you ?")
        self.check(" \tHeLLo!how  \n Are yoU?  ", "HeLLo ! how Are yoU ?", lower_case=False)
        self.check("how\u00A0are\u3000you", "how are you")

    def test_accents(self):
        self.check("H\u00E9llo", "hello")
        self.check("He\u0301llo Caf\u00E9 na\u00EFve", "hello cafe naive")
        self.check("H\u00E9llo", "H\u00E9llo", lower_case=False)
        self.check("\u0130", "i")  # lower case is i and a dot above
        self.check("Stra\u00DFe", "stra\u00DFe")  # no case folding

    def test_ideographs_are_words(self):
        self.check("ah\u535A\u63A8zz", "ah \u535A \u63A8 zz")

    def test_control_characters_vanish(self):
        self.check("a\x00b\ufffd", "ab")
        self.check("hel\u200Blo\u00AD", "hello")

    def test_punctuation_splits(self):
        self.check("don't", "don ' t")
        self.check("$5.00", "$ 5 . 00")
        self.check("[MASK]", "[ mask ]")  # a text cannot write special tokens
        self.check("\u0965", "\u0965")

    def test_words_of_more_than_100_characters(self):
        self.check("a" * 100, " ".join(["a"] + ["##a"] * 99))
        self.check("a" * 101, "[UNK]")


class Files(ProgramTest):
    def convert(self, *arguments, code=0):
        done = subprocess.run([sys.executable, "-B", SCRIPT, *arguments], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def fails(self, *arguments, says):
        self.assertIn(says, self.convert(*arguments, code=1).stderr)

    def write(self, name, content, encoding="utf-8"):
        (self.folder / name).write_text(content, encoding=encoding, newline="")
        return name

    def documents(self, count=60):
        draw = random.Random(1)
        return "\n\n".join("\n".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(draw.randint(2, 9)))
                           for _ in range(count)) + "\n"

    def vocabulary(self, *more):
        return self.write("vocab.txt", "".join(token + "\n" for token in [*text.SPECIAL, *WORDS, *more]))

    def test_what_a_file_holds(self):
        first = self.write("first.txt", "\ufeffThe file.\r\n\r\n \r\n\r\nthe name\r\na list\r\n")
        second = self.write("second.txt", "is that\nthis\n\nof the\n\u200b\nin\nunknown\n\nto be\nif\n\nvalue\n\n\u200b\n\nfor")
        self.convert("out.h5", first, second, "--vocabulary", self.vocabulary("."), "--held-out", "3")
        with h5py.File(self.folder / "out.h5") as file:
            vocabulary = [*text.SPECIAL, *WORDS, "."]

            def documents(prefix):
                tokens, sentences, bounds = (file[prefix + name][:] for name in ("tokens", "sentences", "documents"))
                said = [" ".join(vocabulary[t] for t in tokens[a:b]) for a, b in zip(sentences, sentences[1:])]
                return [said[a:b] for a, b in zip(bounds, bounds[1:])]

            self.assertEqual(documents(""), [["the file ."], ["the name", "a list"], ["of the", "in", "[UNK]"], ["to be", "if"],
                                             ["for"]])
            self.assertEqual(documents("held_out_"), [["is that", "this"], ["value"]])
            attributes = dict(file.attrs)
        sha256 = hashlib.sha256("".join(token + "\n" for token in vocabulary).encode()).hexdigest()
        self.assertEqual(attributes, {"vocabulary_size": len(vocabulary), "pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3,
                                      "mask_id": 4, "lower_case": 1, "vocabulary_sha256": sha256})

    def test_a_trained_vocabulary(self):
        self.write("text.txt", self.documents())
        hashes = set()
        for name in ("a", "b"):
            self.convert(f"{name}.h5", "text.txt", "--vocabulary-size", "200")
            with h5py.File(self.folder / f"{name}.h5") as file:
                hashes.add(file.attrs["vocabulary_sha256"])
                self.assertNotIn(file.attrs["unk_id"], file["tokens"][:])
        self.assertEqual(len(hashes), 1, "the same text gives the same vocabulary")
        tokens = (self.folder / "a.vocab.txt").read_text(encoding="utf-8").splitlines()
        self.assertEqual((len(tokens), tokens[:5]), (200, text.SPECIAL))
        self.assertTrue(set(WORDS) <= set(tokens))
        self.assertEqual(tokens[-1], f"[unused{sum('unused' in token for token in tokens) - 1}]")
        self.convert("c.h5", "text.txt", "--vocabulary", "a.vocab.txt")
        with h5py.File(self.folder / "a.h5") as a, h5py.File(self.folder / "c.h5") as c:
            self.assertEqual(a["tokens"][:].tolist(), c["tokens"][:].tolist())

    def test_bad_input_is_named(self):
        self.write("text.txt", self.documents())
        self.write("latin.txt", "caf\u00E9\n", encoding="latin-1")
        self.fails("out.h5", "nowhere.txt", says="nowhere.txt")
        self.fails("out.h5", "latin.txt", says="latin.txt is not UTF-8")
        self.fails("out.h5", "text.txt", "--held-out", "40", says="--held-out 40 leaves a part 1 documents")
        self.fails("out.h5", "text.txt", "--vocabulary-size", "12", says="--vocabulary-size 12 is too small")
        self.write("short.txt", "[PAD]\n[UNK]\n[CLS]\nthe\n[SEP]\n")
        self.fails("out.h5", "text.txt", "--vocabulary", "short.txt", says="short.txt lacks [MASK]")
        self.fails("out.h5", "text.txt", "--vocabulary", self.vocabulary("the"), says="'the' is on line 6 and on line 26")
        self.assertFalse((self.folder / "out.h5").exists())

    def test_the_program_trains_on_it(self):
        self.write("text.txt", self.documents())
        self.convert("text.h5", "text.txt", "--vocabulary-size", "200")
        small = ["--case", "bert-base", "--set", "sequence=32", "--set", "layers=1", "--set", "hidden=32", "--set", "heads=4"]
        run = ["run", *small, "--set", "vocabulary=200", "--batch", "4", "--steps", "2", "--data", "text.h5", "--json"]
        record = strict_json(self.run_program(*run).stdout)
        self.assertGreater(record["held_out_loss"], 0)
        self.assertLessEqual(record["accuracy"], 1)
        said = self.run_program(*run[:-1]).stdout
        self.assertIn(f"held out     {record['held_out_loss']:.4f}, {100 * record['accuracy']:.2f} % predicted right", said)
        self.refuses("run", *small, "--data", "text.h5", says="--set vocabulary=200")
        self.refuses("run", *small, "--data", "text.txt", says=["text.txt", "not an HDF5 file"])
        content = (self.folder / "text.h5").read_bytes()
        (self.folder / "text.h5").write_bytes(content[: len(content) // 2])
        self.refuses(*run, says=["text.h5", "truncated"])


if __name__ == "__main__":
    main()
