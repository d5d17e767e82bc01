#!/usr/bin/env python3
"""transformers_test.py MODEL_PROGRAM ISTHMUS: Isthmus reads models of `transformers` as the same models and vice versa,
and training with PyTorch's own functions from the same weights on the same batches gives the same losses. Everything is
in fp32. The test makes its models and downloads nothing."""

import array
import copy
import importlib.util
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"{error}: scripts/setup.sh --tests installs what this needs")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import case_results  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

PROGRAM = None
ISTHMUS = None
VOCAB = 97
TEXT = "The river under the bridge carries a small stone; h\u00e4llo, 12 of them.\nAnd the wind.\n"


def llama(**settings):
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=5000.0, **settings)
    return transformers.LlamaForCausalLM(config)


def qwen3():
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM(config)


def gpt2(**settings):
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=6, n_positions=64, embd_pdrop=0.0, attn_pdrop=0.0,
        resid_pdrop=0.0, **settings)
    return transformers.GPT2LMHeadModel(config)


KINDS = {
    "llama": llama,
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "qwen3": qwen3,
    "gpt2": gpt2,
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
}


def make(kind):
    """Makes weights so large that every part of the model matters; norms differ from 1 and biases from 0."""
    torch.manual_seed(sum(map(ord, kind)))
    model = KINDS[kind]().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.1))
    return model


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def numbers(text):
    return torch.tensor([float(line) for line in text.split()], dtype=torch.float64)


def batches(steps, sequences, length):
    """Sequences that follow a rule with some noise, so that only a part of them can be learned."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.zeros(steps, sequences, length + 1, dtype=torch.long)
    ids[..., 0] = torch.randint(VOCAB, ids[..., 0].shape, generator=generator)
    for t in range(length):
        noise = torch.randint(VOCAB, ids[..., t].shape, generator=generator)
        keep = torch.rand(ids[..., t].shape, generator=generator) < 0.8
        ids[..., t + 1] = torch.where(keep, (ids[..., t] * 5 + 11) % VOCAB, noise)
    return ids


def newton_schulz(u, coefficients, steps, eps):
    """Muon's iteration in fp32. torch.optim.Muon uses bf16, and its rounding would change the curve."""
    a, b, c = coefficients
    x = u / u.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def optimizers(model, name, lr, weight_decay):
    hidden = [p for n, p in model.named_parameters() if name == "muon" and p.dim() > 1 and (".layers." in n or ".h." in n)]
    taken = set(map(id, hidden))
    matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in taken]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    yield torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
    if hidden:
        yield torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, momentum=0.95, nesterov=True,
                               adjust_lr_fn="match_rms_adamw")


def train(model, optimizer, ids, lr, weight_decay, clip):
    used = list(optimizers(model, optimizer, lr, weight_decay))
    losses = []
    model.train()
    for batch in ids:
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in used:
            optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


class Transformers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_logits_are_equal_and_what_is_written_is_the_same_model(self):
        ids = [3, 17, 17, 96, 0, 45, 8, 61, 2, 2, 30, 7]
        for kind in KINDS:
            with self.subTest(kind):
                model = make(kind)
                given, written = self.folder / kind / "given", self.folder / kind / "written"
                model.save_pretrained(given)
                logits = numbers(run(PROGRAM, "logits", given, written, *ids))
                with torch.no_grad():
                    expected = model.double()(torch.tensor([ids])).logits[0, -1]
                self.assertLess(((logits - expected).abs().max() / expected.abs().max()).item(), 1e-5)
                again, report = type(model).from_pretrained(written, output_loading_info=True)
                self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"], report)
                self.assertEqual(type(transformers.AutoModelForCausalLM.from_pretrained(written)), type(model))
                for name, value in model.state_dict().items():
                    self.assertTrue(torch.equal(again.state_dict()[name].double(), value), name)
                with torch.no_grad():
                    theirs = again.double()(torch.tensor([ids])).logits[0, -1]
                self.assertTrue(torch.equal(theirs, expected), "settings in config.json differ")

    def check_loss_curve(self, kind, optimizer):
        steps, sequences, length, lr, weight_decay, clip = 50, 8, 32, 1e-3, 0.1, 1.0
        ids = batches(steps, sequences, length)
        (self.folder / "ids").write_bytes(array.array("H", ids.flatten().tolist()).tobytes())
        model = make(kind)
        model.save_pretrained(self.folder / kind)
        ours = numbers(run(PROGRAM, "train", self.folder / kind, self.folder / "ids", sequences, length, lr,
                           weight_decay, clip, optimizer))
        with mock.patch.object(torch.optim._muon, "_zeropower_via_newtonschulz", newton_schulz):
            theirs = train(copy.deepcopy(model), optimizer, ids, lr, weight_decay, clip)
        self.assertEqual(len(ours), steps)
        furthest = ((ours - theirs).abs() / theirs).max().item()
        print(f"{kind}, {optimizer}: loss {theirs[0]:.4f} -> {theirs[-1]:.4f}, relative difference at most {furthest:.1e}")
        self.assertLess(theirs[-1].item(), theirs[0].item() - 0.3, "the loss falls too little for a comparison")
        self.assertLess(furthest, 1e-4)

    def test_a_run_on_bytes_is_exported_with_its_tokenizer(self):
        text = "the river under the bridge carries a small stone\n" * 600
        (self.folder / "corpus.txt").write_text(text)
        (self.folder / "tiny.yaml").write_text(json.dumps({
            "run": {"name": "tiny", "out": str(self.folder), "steps": 20, "eval_every": 0, "sample_tokens": 0},
            "replicas": 1, "device": "cpu", "model": {"layers": 2, "dim": 32, "heads": 2, "qk_norm": False},
            "data": {"path": "corpus.txt", "seq_len": 32}, "trainer": {"threads": 1},
            "inner": {"batch": 4, "lr": 0.01, "warmup_steps": 5, "precision": "fp32"},
            "outer": {"sync_every": 5, "warmup_steps": 5}}))
        run(ISTHMUS, "launch", self.folder / "tiny.yaml")
        folder = self.folder / "model"
        run(ISTHMUS, "export", self.folder / "tiny", "--out", folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(tokenizer("h\u00e4llo\n").input_ids, list("h\u00e4llo\n".encode()))
        self.assertEqual(tokenizer.decode(list("h\u00e4llo\n".encode())), "h\u00e4llo\n")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).double()
        self.assertEqual(type(model).__name__, "LlamaForCausalLM")
        self.assertEqual((model.config.eos_token_id, tokenizer.eos_token_id), (0, 0))

        sentence = text[:33]
        (self.folder / "text.txt").write_text(sentence)
        run(ISTHMUS, "eval", folder, "--data", self.folder / "text.txt", "--out", self.folder / "eval.json",
            "--set", "device=cpu", "--set", "inner.precision=fp32", "--set", "data.seq_len=33")
        figures = json.loads((self.folder / "eval.json").read_text())
        ids = torch.tensor([tokenizer(sentence).input_ids + [0]])
        with torch.no_grad():
            loss = model(ids, labels=ids).loss.item()
        self.assertEqual(figures["tokens"], 33)
        self.assertAlmostEqual(figures["loss"], loss, delta=1e-5 * loss)
        self.assertAlmostEqual(figures["perplexity"], math.exp(loss), delta=1e-4 * math.exp(loss))


    def run_on(self, data, *words):
        """Trains a tiny model on `data` and exports it with these words. Returns the exported folder."""
        (self.folder / "tiny.yaml").write_text(json.dumps({
            "run": {"name": "tiny", "out": str(self.folder), "steps": 10, "eval_every": 0, "sample_tokens": 0},
            "replicas": 1, "device": "cpu", "model": {"layers": 1, "dim": 32, "heads": 2}, "data": data,
            "trainer": {"threads": 1}, "inner": {"batch": 2, "precision": "fp32", "warmup_steps": 5}, "outer": {"sync_every": 5, "warmup_steps": 5}}))
        run(ISTHMUS, "launch", self.folder / "tiny.yaml")
        run(ISTHMUS, "export", self.folder / "tiny", "--out", self.folder / "model", *words)
        return self.folder / "model"

    def test_a_run_on_ids_is_exported_with_the_tokenizer_that_is_named(self):
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        tokenizer.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
        tokenizer.save(str(self.folder / "named.json"))
        end = tokenizer.token_to_id("<|endoftext|>")
        ids = [*tokenizer.encode(TEXT).ids, end]
        (self.folder / "owt").mkdir()
        for name, count in (("train", 40), ("val", 2)):
            (self.folder / "owt" / f"{name}.bin").write_bytes(array.array("H", ids * count).tobytes())
        data = {"path": "owt", "tokenizer": "vocab:320", "separator": end, "seq_len": 32}
        folder = self.run_on(data, "--tokenizer", self.folder / "named.json", "--dtype", "bf16")
        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(loaded(TEXT).input_ids, ids[:-1])
        self.assertEqual(loaded.decode(ids[:-1]), TEXT)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.assertEqual((model.dtype, model.config.vocab_size), (torch.bfloat16, 320))
        self.assertEqual((model.config.eos_token_id, loaded.eos_token_id, loaded.eos_token), (end, end, "<|endoftext|>"))
        run(ISTHMUS, "export", self.folder / "tiny", "--out", self.folder / "exact")
        exact = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "exact").state_dict()
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(exact[name].to(torch.bfloat16), value), name)

    @unittest.skipUnless(importlib.util.find_spec("sentencepiece"), "the package sentencepiece is not installed")
    def test_a_sentencepiece_model_gives_the_same_ids(self):
        import sentencepiece
        (self.folder / "text.txt").write_text(TEXT * 20)
        for kind in ("bpe", "unigram"):
            sentencepiece.SentencePieceTrainer.train(
                input=str(self.folder / "text.txt"), model_prefix=str(self.folder / kind), model_type=kind,
                vocab_size=60, hard_vocab_limit=False, minloglevel=2)
            data = {"path": "text.txt", "tokenizer": f"{kind}.model", "seq_len": 16}
            folder = self.run_on(data, "--replace")
            loaded = transformers.AutoTokenizer.from_pretrained(folder)
            pieces = sentencepiece.SentencePieceProcessor(model_file=str(self.folder / f"{kind}.model"))
            for text in (TEXT, "  two spaces\nand a line", "\u4e2d"):
                self.assertEqual(loaded(text).input_ids, pieces.encode(text), kind)
            self.assertEqual((loaded.eos_token, loaded.eos_token_id), ("</s>", pieces.eos_id()))
            shutil.rmtree(self.folder / "tiny")


def loss_curve_test(kind, optimizer):
    return lambda test: test.check_loss_curve(kind, optimizer)


for KIND, OPTIMIZER in [*((kind, "adamw") for kind in KINDS), ("llama", "muon"), ("gpt2", "muon")]:
    setattr(Transformers, f"test_the_loss_curve_is_pytorchs_{KIND.replace(', ', '_')}_{OPTIMIZER}",
            loss_curve_test(KIND, OPTIMIZER))

if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, ISTHMUS = sys.argv.pop(1), sys.argv.pop(1)
    case_results.main()
