#!/usr/bin/env python3
"""Makes a small Llama model with random weights, its own BPE tokenizer and a chat template; nothing is downloaded.

usage: make_tiny_model.py DIR HIDDEN LAYERS HEADS KV_HEADS INTERMEDIATE MAX_POSITIONS
HIDDEN / HEADS must be a multiple of 32 (vLLM's CPU attention). 512 8 8 4 1408 8192 gives 62 MB and a prefill of roughly
1 ms a token on one core: slow enough that a cached prefix shows in the time to first token.
"""
import glob
import json
import os
import sys
import sysconfig

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = 8000

# Tools first, as real templates have it, so that they are part of the prompt's prefix.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\n' }}{% for t in tools %}{{ t | tojson }}{{ '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for p in m['content'] %}{{ p.get('text', '') }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(out: str):
    """Byte-level BPE, trained on text that every Python has: the first 120 modules of its standard library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train(sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))[:120], trainer)
    tok.save(os.path.join(out, "tokenizer.json"))
    return tok


def main() -> None:
    out = sys.argv[1]
    hidden, layers, heads, kv_heads, intermediate, positions = (int(x) for x in sys.argv[2:8])
    os.makedirs(out, exist_ok=True)
    tok = make_tokenizer(out)
    eos = tok.token_to_id("<|im_end|>")
    write(out, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "model_max_length": positions, "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
    })
    with open(os.path.join(out, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = {"bos_token_id": 0, "eos_token_id": eos, "pad_token_id": 0}
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=hidden // heads, vocab_size=(tok.get_vocab_size() + 63) // 64 * 64,
        max_position_embeddings=positions, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, **ids,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    # save_pretrained moves the ids into generation_config.json only; engines read them from either.
    with open(os.path.join(out, "config.json")) as f:
        saved = json.load(f)
    write(out, "config.json", saved | ids)
    write(out, "generation_config.json", ids)


def write(out: str, name: str, value: dict) -> None:
    with open(os.path.join(out, name), "w") as f:
        json.dump(value, f, indent=1)


if __name__ == "__main__":
    main()
