"""Writes tests/golden/llama: small random Llama and Qwen3 models, and what transformers computes with them in float32.

python tools/llama_goldens.py --templates DIR --out tests/golden/llama
python tools/llama_goldens.py --checkpoint MODEL --device cuda

A folder per case: config.json, generation_config.json and the weights (bfloat16) as save_pretrained writes them, a small
tokenizer, and golden.safetensors with the prompt, stages of the prompt (every ROW_STRIDE-th token), and the greedy
continuation with its logits. Two of them are chat models and have chat.json: conversations, the token ids that
apply_chat_template makes of them with llama31.jinja and qwen3.jinja of DIR (as in chat_goldens.py), and the greedy answer. The folder gets a
stand-in: as much of a template as tells which one it is. Some have adapter/: low-rank terms as PEFT saves them, which what is expected includes.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 17
PROMPT_TOKENS = 75  # more than the contexts that the scaled ropes were "trained" for
GENERATED_TOKENS = 16
ANSWER_TOKENS = 12
ROW_STRIDE = 6
STAND_INS = {
    "llama31": "{# <|start_header_id|> and Cutting Knowledge Date: Llama 3.1's #}",
    "qwen3": "{# <|im_start|> and </think>: Qwen3's #}",
}

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 277,
    "max_position_embeddings": 256,
    "bos_token_id": 272,
    "eos_token_id": 276,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0}

# Each option on and off in some case: (family, config, save_pretrained, chat template).
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    # The head size follows from the others.
    "llama": ("llama", {"head_dim": None, "num_attention_heads": 1, "rms_norm_eps": 1e-5}, {}, ""),
    "llama-grouped-scaled-tied": (
        "llama",
        {"num_attention_heads": 4, "rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True},
        {"max_shard_size": "20KB"},
        "llama31",
    ),
    "llama-biases-linear": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "rope_scaling": LINEAR_ROPE, "eos_token_id": [276, 275]},
        {},
        "",
    ),
    "qwen3": ("qwen3", {"rope_theta": 1000000.0}, {}, "qwen3"),
    "qwen3-tied-yarn-bias": (
        "qwen3",
        {"attention_bias": True, "tie_word_embeddings": True, "rope_scaling": YARN_ROPE, "num_key_value_heads": 2},
        {"max_shard_size": "30KB"},
        "",
    ),
    "llama-adapter": ("llama", {}, {}, ""),
    "qwen3-adapter": ("qwen3", {}, {}, ""),
}
# Of the cases that have one. Products of the same input, one matrix on the device, have terms of different ranks, or none.
ADAPTERS: dict[str, dict[str, Any]] = {
    "llama-adapter": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]},
    "qwen3-adapter": {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear", "rank_pattern": {"up_proj": 2}},
}

CORPUS = ("The user asks and the assistant answers. What is the colour of the circle? The circle is red.",) * 3
LLAMA_SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>", "<|eot_id|>")
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONVERSATIONS = (
    [("user", "What is the colour of the circle?")],
    [("system", " Be brief. "), ("user", "Hello\n"), ("assistant", "<think>\nHm.\n</think>\n\nHi."), ("user", " And 2+2?")],
    [("user", "caf\u00e9 cafe\u0301 \u65e5\u672c\u8a9e \U0001f642 123456 it's  x\n\n\ty")],
)


def make_tokenizer(family: str) -> Tokenizer:
    digits = r"\p{N}{1,3}" if family == "llama" else r"\p{N}"
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE(ignore_merges=family == "llama"))
    if family == "qwen3":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=272, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = LLAMA_SPECIAL if family == "llama" else QWEN_SPECIAL
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if family == "qwen3":
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    else:
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{special[0]} $A", special_tokens=[(special[0], tokenizer.token_to_id(special[0]))]
                ),
            ]
        )
    return tokenizer


def fill(model: torch.nn.Module) -> None:
    """Weights with which attention looks somewhere and logits have a winner."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.3 * noise
        elif parameter.dim() == 1:
            value = 0.3 * noise
        elif "embed_tokens" in name:
            value = noise
        else:
            value = 1.5 * noise / parameter.shape[1] ** 0.5
        parameter.data = value.bfloat16().float()


def with_adapter(model: torch.nn.Module, options: dict[str, Any], folder: Path) -> torch.nn.Module:
    """The model with low-rank terms beside its products, which are written into the folder."""
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    generator = torch.Generator().manual_seed(SEED + 2)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()
    return adapted


def greedy(model: torch.nn.Module, prompt: list[int], ends: set[int]) -> tuple[list[int], bool]:
    """The answer's tokens, and whether it ended."""
    tokens, answer = torch.tensor([prompt]), []
    while len(answer) < ANSWER_TOKENS:
        best = model(tokens).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > 1e-3, "too close for a test in float32"
        token = int(best.indices[0])
        if token in ends:
            return answer, True
        answer.append(token)
        tokens = torch.cat([tokens, torch.tensor([[token]])], dim=1)
    return answer, False


def write_chat(model: torch.nn.Module, tokenizer: Tokenizer, template: str, jinja: str, folder: Path) -> None:
    bos = LLAMA_SPECIAL[0] if template.startswith("llama") else None
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos)
    cases = []
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": text} for role, text in conversation]
        ids = fast.apply_chat_template(
            messages, chat_template=jinja, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        ids = list(map(int, ids))
        answer, ended = greedy(model, ids, {SIZES["eos_token_id"]})
        text = tokenizer.decode(answer, skip_special_tokens=True)
        cases.append({"messages": messages, "ids": ids, "answer": answer, "text": text, "ended": ended})
    (folder / "chat.json").write_text(json.dumps(cases) + "\n")
    if template == "qwen3":
        (folder / "chat_template.jinja").write_text(STAND_INS[template] + "\n")
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": STAND_INS[template]}) + "\n")


@torch.no_grad()
def golden_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A prompt, its stages and its greedy continuation."""
    generator = torch.Generator().manual_seed(SEED + 1)
    tokens = torch.randint(3, model.config.vocab_size, (1, PROMPT_TOKENS), generator=generator).to(model.device)
    stages = model(tokens, output_hidden_states=True)
    hidden = [states[0, ::ROW_STRIDE] for states in stages.hidden_states[:-1]]
    last = stages.hidden_states[-1][0, -1:]  # of the last block only what its norm makes is told
    golden = {"prompt": tokens[0].int(), "text.input": hidden[0], "text.post_ln": last}
    for i, states in enumerate(hidden[1:]):
        golden[f"text.block.{i}"] = states

    generated, logits, margins = [], [], []
    for _ in range(GENERATED_TOKENS):
        last = model(tokens).logits[0, -1]
        best = last.topk(2).values
        margins.append(best[0] - best[1])
        logits.append(last)
        generated.append(last.argmax())
        tokens = torch.cat([tokens, generated[-1].reshape(1, 1)], dim=1)
    return golden | {
        "logits": torch.stack(logits[::5]),
        "tokens": torch.stack(generated).int(),
        "margins": torch.stack(margins),
    }


def save_golden(golden: dict[str, torch.Tensor], folder: Path) -> None:
    save_file({key: value.contiguous().cpu() for key, value in golden.items()}, folder / "golden.safetensors")
    print(f"{folder.name}: smallest margin {golden['margins'].min().item():.4f}, tokens {golden['tokens'].tolist()}")


def write_checkpoint_golden(folder: Path, device: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    model_class = Qwen3ForCausalLM if config["architectures"] == ["Qwen3ForCausalLM"] else LlamaForCausalLM
    save_golden(golden_of(model_class.from_pretrained(folder, dtype=torch.float32).to(device).eval()), folder)


@torch.no_grad()
def write_case(name: str, templates: Path, out: Path) -> None:
    family, options, saving, template = CASES[name]
    config_class, model_class = (LlamaConfig, LlamaForCausalLM) if family == "llama" else (Qwen3Config, Qwen3ForCausalLM)
    model = model_class(config_class(**(SIZES | options))).float().eval()
    fill(model)
    model.tie_weights()
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)

    tokenizer = make_tokenizer(family)
    folder.mkdir(parents=True)
    if template:
        write_chat(model, tokenizer, template, (templates / f"{template}.jinja").read_text(), folder)
    copy.deepcopy(model).bfloat16().save_pretrained(folder, **saving)
    if name in ADAPTERS:
        model = with_adapter(model, ADAPTERS[name], folder / "adapter")
    document = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
    save_golden(golden_of(model), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="only the golden.safetensors of this model, such as random-model writes")
    parser.add_argument("--device", default="cpu", help="of --checkpoint")
    parser.add_argument("--out", type=Path, default=Path("tests/golden/llama"))
    parser.add_argument("--only", choices=sorted(CASES))
    options = parser.parse_args()
    if options.checkpoint:
        return write_checkpoint_golden(options.checkpoint, options.device)
    if not options.templates:
        parser.error("--templates is needed")
    for name in [options.only] if options.only else CASES:
        write_case(name, options.templates, options.out)


if __name__ == "__main__":
    main()
