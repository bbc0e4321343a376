#!/usr/bin/env python3
"""Converts text to a data file for `vramlab run --case bert-base --data` (or bert-large).

TEXT is UTF-8, a sentence a line, an empty line between documents; a file ends a document. Sentences become tokens as
in BERT: split at white space and punctuation, words then into the longest pieces of the vocabulary. --vocabulary
names one as BERT has it, a token a line, its number from 0. Without, one of --vocabulary-size tokens is trained on the
text and written beside the data file, OUT.vocab.txt; tokens the text does not need are filled up with [unused0],
[unused1], ... Every --held-out-th document is held out.

OUT.h5 holds tokens (T); sentences (N + 1), where each begins in tokens, and T; documents (D + 1), where each begins in
sentences, and N; the same three with held_out_ in front; and the attributes vocabulary_size, pad_id, unk_id, cls_id,
sep_id, mask_id, lower_case and vocabulary_sha256, of the tokens in order, each with a line feed.
"""

import argparse
import hashlib
import sys
from array import array
from pathlib import Path

try:
    import h5py
    import numpy as np
    import tokenizers
except ImportError as error:
    sys.exit(f"text.py: {error} (pip install tokenizers h5py numpy; scripts/peers/setup does so)")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MAX_WORD = 100  # characters; a longer word is [UNK]
AT_ONCE = 10000  # sentences


def read_documents(paths):
    """Lists of sentences; none is empty."""
    for path in paths:
        sentences, number = [], 0
        try:
            with open(path, encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    line = line.strip()
                    if line:
                        sentences.append(line)
                    elif sentences:
                        yield sentences
                        sentences = []
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8: {error.reason} after line {number}") from error
        if sentences:
            yield sentences


def read_vocabulary(path):
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    tokens = text.removesuffix("\n").split("\n")
    places = {}
    for line, token in enumerate(tokens, 1):
        if token in places:
            raise ValueError(f"{path}: '{token}' is on line {places[token]} and on line {line}")
        places[token] = line
    missing = [token for token in SPECIAL if token not in places]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return tokens


def make_tokenizer(vocabulary, lower_case):
    """BERT's, but that [MASK] and the like in a text are words as any other."""
    model = tokenizers.models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]",
                                        max_input_chars_per_word=MAX_WORD)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower_case)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def inner_characters(tokenizer, paths):
    words = ((word for document in read_documents(paths) for sentence in document for word, _ in
              tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(sentence))))
    return sorted({character for word in words for character in word[1:]})


def train_vocabulary(paths, size, lower_case):
    tokenizer = make_tokenizer(SPECIAL, lower_case)
    # The trainer would number these as its hash table has them, and break ties by number: each time another vocabulary.
    given = SPECIAL + ["##" + character for character in inner_characters(tokenizer, paths)]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=size, special_tokens=given, show_progress=False)
    tokenizer.train_from_iterator((sentence for document in read_documents(paths) for sentence in document), trainer)
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    if len(vocabulary) > size:
        raise ValueError(f"--vocabulary-size {size} is too small: the text's characters alone take {len(vocabulary)}")
    return vocabulary + [f"[unused{i}]" for i in range(size - len(vocabulary))]


class Part:
    """Tokens of some of the documents, and where sentences and documents begin."""

    def __init__(self):
        self.tokens, self.sentences, self.documents = array("i"), array("q", [0]), array("q", [0])

    def add(self, sentences):
        for tokens in sentences:
            if tokens:  # a line of control characters alone gives none
                self.tokens.extend(tokens)
                self.sentences.append(len(self.tokens))
        if len(self.sentences) - 1 > self.documents[-1]:
            self.documents.append(len(self.sentences) - 1)

    def write(self, file, prefix, dtype):
        for name, values, kind in (("tokens", self.tokens, dtype), ("sentences", self.sentences, "i8"),
                                   ("documents", self.documents, "i8")):
            file.create_dataset(prefix + name, data=np.array(values, dtype=kind))


def tokenize(tokenizer, documents, held_out):
    """Every held_out-th document is in the second part."""
    parts = Part(), Part()
    for i, document in enumerate(documents):
        encoded = [tokenizer.encode_batch(document[at:at + AT_ONCE], add_special_tokens=False)
                   for at in range(0, len(document), AT_ONCE)]
        parts[i % held_out == held_out - 1].add([sentence.ids for some in encoded for sentence in some])
    return parts


def write_file(path, vocabulary, lower_case, parts):
    with h5py.File(path, "w") as file:
        for part, prefix in zip(parts, ("", "held_out_")):
            part.write(file, prefix, "u2" if len(vocabulary) <= 1 << 16 else "i4")
        file.attrs["vocabulary_size"] = len(vocabulary)
        for token in SPECIAL:
            file.attrs[token.strip("[]").lower() + "_id"] = vocabulary.index(token)
        file.attrs["lower_case"] = int(lower_case)
        text = "".join(token + "\n" for token in vocabulary)
        file.attrs["vocabulary_sha256"] = hashlib.sha256(text.encode()).hexdigest()


def convert(arguments):
    lower_case = not arguments.cased
    if arguments.vocabulary:
        vocabulary = read_vocabulary(arguments.vocabulary)
    else:
        vocabulary = train_vocabulary(arguments.text, arguments.vocabulary_size, lower_case)
        beside = arguments.output.with_suffix(".vocab.txt")
        beside.write_text("".join(token + "\n" for token in vocabulary), encoding="utf-8")
    parts = tokenize(make_tokenizer(vocabulary, lower_case), read_documents(arguments.text), arguments.held_out)
    fewest = min(len(part.documents) - 1 for part in parts)
    if fewest < 2:
        raise ValueError(f"--held-out {arguments.held_out} leaves a part {fewest} documents, and a sentence that does not "
                         "follow comes from another document; an empty line ends one")
    write_file(arguments.output, vocabulary, lower_case, parts)
    unknown = sum(part.tokens.count(vocabulary.index("[UNK]")) for part in parts)
    share = unknown / sum(len(part.tokens) for part in parts)
    print(f"{arguments.output}: " + ", ".join(
        f"{len(part.tokens)} tokens of {len(part.sentences) - 1} sentences in {len(part.documents) - 1} documents {what}"
        for part, what in zip(parts, ("to train on", "held out"))) +
        f"; vocabulary of {len(vocabulary)}, {share:.2%} of the text unknown")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", metavar="OUT.h5", type=Path)
    parser.add_argument("text", metavar="TEXT", type=Path, nargs="+")
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help="vocab.txt of a BERT")
    parser.add_argument("--vocabulary-size", type=int, default=30522, metavar="N",
                        help="of the one trained (default 30522, as the case has)")
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    parser.add_argument("--held-out", type=int, default=20, metavar="N", help="hold out every Nth document (default 20)")
    arguments = parser.parse_args()
    if arguments.held_out < 2:
        parser.error(f"--held-out is {arguments.held_out}; at least 2 is needed")
    try:
        convert(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"text.py: {error}")


if __name__ == "__main__":
    main()
