#!/usr/bin/env python3
"""tokenizers_test.py ENCODE_TEXT [TOKENIZER.json ...]: Isthmus gives the same ids as the `tokenizers` package for
several MB of text, including difficult text. It trains tokenizers of the usual kinds, since tests have no network, and
also compares the given files."""

import array
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as error:
    sys.exit(f"{error}: scripts/setup.sh --tests installs what this needs")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import case_results  # noqa: E402

ENCODE_TEXT = None
FILES = []

# Patterns of published tokenizer.json files.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def hard_text(seed, size):
    """Runs and mixtures of text that is difficult for patterns and merges."""
    rng = random.Random(seed)
    pieces = (
        ["'s", "'S", "'T", "'re", "'RE", "'Ve", "'ll", "'LL", "'d", "'D", "'m", "'M", "'ſ", "’s", "''", "'"]
        + [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", " \n ", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0"]
        + ["\u1680", "\u180e", "\u2000", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060"]
        + ["\u3000", "\ufeff", " " * 70, "\n" * 30, " \t" * 40, "\u00a0 " * 9]
        + ["1", "12", "123", "1234", "12345678901", "٣٤٥٦", "Ⅷ", "½", "²", "一二三", "１２３４", "1,000.50", "0x1F"]
        + ["日本語の文字", "中文分詞", "한국어", "한국", "العربية ", "مَرْحَبًا", "עברית", "हिन्दी", "ไทย", "Ελλάδα", "ὀδυσσεύς"]
        + ["é", "e\u0301", "A\u030a", "ﬁ", "ǆ", "ǅ", "Ǆ", "ß", "İ", "ı", "K", "Å", "ﬆ", "ŉ", "\u0344", "ᾳ", "\u1e9b\u0323"]
        + ["a\u0301\u0323", "\u0301\u0301", "q\u0307\u0323", "각", "\u1100\u1161\u11a8", "豈", "\U0002f800"]
        + ["😀", "👩‍👩‍👧‍👦", "🇩🇪", "✊🏽", "❤️", "𝒳𝒴", "\U0001d7d8\U0001d7d9", "\U00010000", "\U0010ffff", "\ufffd", "\ue000"]
        + ["<|endoftext|>", "<|endoftext|", "<|end_of_text|>", "<|im_start|>", "<mask>", " <mask> ", "  <mask>\n\n", "[sep]"]
        + ["camelCaseWords", "snake_case", "ALLCAPS", "MixedÉTÉcase", "Don't", "DON'T", "we'VE", "l'été", "__init__", "==="]
        + ["!" * 50, "a" * 300, "ab" * 200, "é" * 100, "語" * 200, "-" * 80, "();\n", "//", "/*\r\n*/", "{}[]", "\\", "\0"]
        + [" the", " of", "ing", "tion", "return ", "std::vector<int> "]
    )
    out, length = [], 0
    while length < size:
        kind = rng.random()
        if kind < 0.8:
            piece = rng.choice(pieces)
        elif kind < 0.9:
            piece = rng.choice(" \n'é1a") * rng.randrange(1, 6)
        else:
            piece = "".join(any_character(rng) for _ in range(rng.randrange(1, 8)))
        out.append(piece)
        length += len(piece.encode())
    return "".join(out)


def any_character(rng):
    while True:
        character = rng.choice((rng.randrange(0x3000), rng.randrange(0x20000), rng.randrange(0x110000)))
        if not 0xD800 <= character < 0xE000:
            return chr(character)


def real_text(most_bytes):
    """Prose, C++ and Python from this machine, only UTF-8 files."""
    folders = [ROOT / "README.md", ROOT / "docs", ROOT / "data", ROOT / "outer_sync", ROOT / "tests"]
    folders += [pathlib.Path(p) for p in ("/usr/share/common-licenses", "/usr/include/c++", "/usr/lib/python3")]
    folders += sorted(pathlib.Path("/usr/lib").glob("python3.*/"))
    text, size = [], 0
    for folder in folders:
        from_here = 0
        for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if not file.is_file() or file.suffix in (".pyc", ".so", ".gz") or from_here > most_bytes // 4:
                continue
            try:
                text.append(file.read_bytes().decode())
            except (UnicodeDecodeError, OSError):
                continue
            from_here += len(text[-1])
            size += len(text[-1])
            if size > most_bytes:
                return "".join(text)
    return "".join(text)


def pieces_of(text, piece_bytes):
    """Must match pieces_of in encode_text.cpp."""
    pieces = []
    while piece_bytes > 0 and len(text) > piece_bytes:
        line = text.rfind(b"\n", 0, piece_bytes)
        if line < 0:
            break
        pieces.append(text[: line + 1])
        text = text[line + 1 :]
    return pieces + [text]


class Kinds:
    """Tokenizers configured like published ones. Each is trained on `text` and written to a file."""

    def __init__(self, folder, text, vocab=6000):
        self.folder, self.text, self.vocab = folder, text, vocab

    def train(self, name, pre_tokenizer, special=("<|endoftext|>",), vocab=None, normalizer=None, **model):
        tokenizer = Tokenizer(models.BPE(**model))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        if normalizer:
            tokenizer.normalizer = normalizer
        trainer = trainers.BpeTrainer(
            vocab_size=vocab or self.vocab,
            special_tokens=list(special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(self.text.splitlines(keepends=True), trainer)
        return self.write(name, tokenizer)

    def write(self, name, tokenizer, change=lambda document: None):
        document = json.loads(tokenizer.to_str() if isinstance(tokenizer, Tokenizer) else tokenizer.read_text())
        change(document)
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(document, ensure_ascii=False))
        return file

    @staticmethod
    def split(*patterns):
        steps = [pre_tokenizers.Split(Regex(p), "isolated", invert=False) for p in patterns]
        return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    @functools.cache
    def gpt2(self):
        """Like GPT-2's file: merges as strings, no type, "<|endoftext|>" in the vocabulary."""

        def old(document):
            model = document["model"]
            model["merges"] = [" ".join(pair) for pair in model["merges"]]
            for key in ("type", "byte_fallback", "ignore_merges"):
                del model[key]
            model["continuing_subword_prefix"] = model["end_of_word_suffix"] = ""
            del document["pre_tokenizer"]["use_regex"]

        file = self.train("gpt2_new", pre_tokenizers.ByteLevel(add_prefix_space=False))
        return self.write("gpt2", file, old)

    @functools.cache
    def llama3(self):
        """Here ignore_merges matters: without the last merges, only ignore_merges yields the tokens of their words.
        Special tokens follow the vocabulary."""

        def fewer(document):
            model = document["model"]
            assert model["ignore_merges"]
            model["merges"] = model["merges"][:-1500]
            size = len(model["vocab"])
            names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_start|>"]
            names += [f"<|reserved_special_token_{i}|>" for i in range(252)]
            document["added_tokens"] = [
                dict(id=size + i, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                for i, name in enumerate(names)
            ]

        file = self.train("llama3_trained", self.split(LLAMA3), special=(), ignore_merges=True)
        return self.write("llama3", file, fewer)

    @functools.cache
    def qwen2(self):
        return self.train("qwen2", self.split(QWEN2), normalizer=normalizers.NFC())

    @functools.cache
    def o200k(self):
        return self.train("o200k", self.split(O200K))

    @functools.cache
    def deepseek3(self):
        return self.train("deepseek3", self.split(*DEEPSEEK3), special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"))

    @functools.cache
    def roberta(self):
        """add_prefix_space, and tokens that include adjacent whitespace."""
        file = self.train("roberta_trained", pre_tokenizers.ByteLevel(add_prefix_space=True), special=("<s>", "</s>"))
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=False, normalized=False)])
        tokenizer.add_tokens([AddedToken("[sep]", lstrip=True, rstrip=True, normalized=True), AddedToken("<|im_start|>"), AddedToken("<|endoftext|", rstrip=True)])
        return self.write("roberta", tokenizer)

    @functools.cache
    def no_words(self):
        """No pattern: the whole text is one word, so that quadratic merging would be noticed."""
        return self.train("no_words", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), vocab=1000)


def encode(tokenizer, text_file, piece_bytes, ids_file):
    """The ids that Isthmus gives for a file, and the lines that encode_text prints."""
    out = subprocess.run(
        [ENCODE_TEXT, tokenizer, text_file, str(piece_bytes), ids_file], input="\n", text=True, capture_output=True
    )
    if out.returncode != 0:
        raise AssertionError(f"encode_text {tokenizer}: {out.stderr}")
    ids = array.array("I", ids_file.read_bytes())
    if sys.byteorder == "big":
        ids.byteswap()
    return ids, [json.loads(line) for line in out.stdout.splitlines()]


class SameIds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.real = real_text(3_000_000)
        cls.hard = hard_text(1, 600_000)
        cls.kinds = Kinds(cls.folder, cls.real[:1_500_000] + hard_text(2, 200_000))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def compare(self, file, text, piece_bytes=1 << 20):
        reference = Tokenizer.from_file(str(file))
        text_file = self.folder / "text"
        text_file.write_bytes(text.encode())
        ours, notes = encode(file, text_file, piece_bytes, self.folder / "ids")
        theirs = []
        for piece in pieces_of(text.encode(), piece_bytes):
            theirs += reference.encode(piece.decode(), add_special_tokens=False).ids
        theirs = array.array("I", theirs)
        self.assertGreater(len(theirs), 0)
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            show = lambda ids: [reference.id_to_token(i) for i in ids[max(0, at - 5) : at + 5]]
            self.fail(
                f"{file.name}: id {at} of {len(theirs)} differs (ours: {len(ours)}); around it"
                f"\n  tokenizers {show(theirs)}\n  ours       {show(ours)}"
            )
        return notes

    def compare_all(self, file, decoded=lambda text: text, hard=None):
        """`decoded` returns the text that decoding should give."""
        for text in (self.real, hard or self.hard):
            notes = self.compare(file, text)
            self.assertEqual(len(notes) == 1, decoded(text) == text, notes)

    def test_gpt2(self):
        self.compare_all(self.kinds.gpt2())

    @case_results.long
    def test_llama3(self):
        self.compare_all(self.kinds.llama3())

    def test_qwen2(self):
        """`tokenizers` implements NFC of Unicode 9, which does not reorder newer combining characters."""
        nfc = normalizers.NFC()
        moves = lambda c: not unicodedata.combining(c) or any(
            nfc.normalize_str("a" + pair) != "a" + pair for pair in ("\u0345" + c, c + "\u0334")
        )
        newer = {c for c in set(self.hard) if not moves(c)}
        self.assertLess(len(newer), 120)
        hard = "".join(c for c in self.hard if c not in newer)
        self.compare_all(self.kinds.qwen2(), lambda text: unicodedata.normalize("NFC", text), hard)

    @case_results.long
    def test_o200k(self):
        self.compare_all(self.kinds.o200k())

    @case_results.long
    def test_deepseek3(self):
        self.compare_all(self.kinds.deepseek3())

    @case_results.long
    def test_roberta(self):
        self.compare_all(self.kinds.roberta(), lambda text: " " + text)

    @case_results.long
    def test_every_character(self):
        """Both agree on letters, numbers and so on, independently of the libraries' Unicode versions."""
        characters = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
        random.Random(4).shuffle(characters)
        text = "".join(characters)
        for file in (self.kinds.llama3(), self.kinds.o200k(), self.kinds.deepseek3()):
            self.compare(file, text)
            self.compare(file, " ".join(characters[:200_000]))

    def test_long_words(self):
        file = self.kinds.no_words()
        self.compare(file, self.real[:300_000])
        self.compare(file, "a" * 1_000_000)
        self.compare(file, self.hard[:100_000])

    def test_long_runs(self):
        file = self.kinds.llama3()
        for run in ("a", " ", "\n", " \n", "1", "!", "語", "\u0301", "\xa0", "aB", "'s", "\t "):
            self.compare(file, run * 100_000)
            self.compare(file, run * 30_000 + "x")

    def test_short_texts(self):
        """Lookaheads could differ at the end of a text."""
        file = self.kinds.gpt2()
        rng = random.Random(3)
        for text in ["a", " ", "\n", "a ", " a", "  ", "a  ", "  a", "'", "'s", "\xa0", "é"] + [
            hard_text(rng.random(), rng.randrange(1, 40)) for _ in range(40)
        ]:
            self.compare(file, text)

    def test_named_files(self):
        for file in FILES:
            for text in (self.real, self.hard):
                self.compare(file, text)


if __name__ == "__main__":
    ENCODE_TEXT = sys.argv.pop(1)
    for argument in [a for a in sys.argv[1:] if a.endswith(".json")]:
        FILES.append(pathlib.Path(argument))
        sys.argv.remove(argument)
    case_results.main()
