#!/usr/bin/env python3
"""Attention of transformers against the engine's under the same model: attached_speed.py [--device cuda] ...

Layers of V4-Flash's shapes (two of each kind), experts made tiny, random BF16 weights. It prints seconds for a prefill
and for a decoded token at a context, of the attention alone: what runs inside of the attention modules.
"""

import argparse
import statistics
import time

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import dsv4rt.transformers

KINDS = {"swa": "sliding_attention", "csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}
YARN = {"rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 65536}


def flash_shaped(kinds, layers_of_a_kind, device):
    kinds = [KINDS[kind] for kind in kinds for _ in range(layers_of_a_kind)]
    config = DeepseekV4Config(vocab_size=256, num_hidden_layers=len(kinds), layer_types=kinds, moe_intermediate_size=64,
                              n_routed_experts=2, num_experts_per_tok=1, mlp_layer_types=["moe"] * len(kinds),
                              rope_parameters=YARN, eos_token_id=None, bos_token_id=None)
    torch.manual_seed(1)
    with torch.device("meta"):
        model = DeepseekV4ForCausalLM(config)
    model = model.to_empty(device=device).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() >= 2 else 0.1
            parameter.normal_(1.0 if "norm" in name else 0.0, scale)
        for module in model.modules():
            if type(module).__name__ == "DeepseekV4RotaryEmbedding":
                model._init_weights(module)
            if hasattr(module, "e_score_correction_bias"):
                module.e_score_correction_bias.zero_()
    return model


class AttentionClock:
    """Seconds that pass inside of a model's attention modules."""

    def __init__(self, model):
        self.seconds = 0.0
        for layer in model.model.layers:
            layer.self_attn.register_forward_pre_hook(self._begin)
            layer.self_attn.register_forward_hook(self._end)

    @staticmethod
    def _now():
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def _begin(self, *_):
        self._from = self._now()

    def _end(self, *_):
        self.seconds += self._now() - self._from

    def of(self, call):
        self.seconds = 0.0
        result = call()
        return self.seconds, result


@torch.no_grad()
def measure(model, clock, prompt, decoded):
    """Attention's seconds: for the last `prefill` tokens of the prompt, and the median of decoded tokens after it."""
    context, prefill = prompt
    ids = torch.randint(0, 256, (1, context), generator=torch.Generator().manual_seed(2)).to(model.device)
    cache = None
    for begin in range(0, context, prefill):
        seconds, out = clock.of(lambda: model(ids[:, begin:begin + prefill], past_key_values=cache, logits_to_keep=1))
        cache = out.past_key_values
        if begin == 0:
            first = seconds
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    times = [clock.of(lambda: model(token, past_key_values=cache))[0] for _ in range(decoded)]
    return first, statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--kinds", default="swa,csa,hca")
    parser.add_argument("--layers-of-a-kind", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048, help="tokens before the decoded ones")
    parser.add_argument("--prefill", type=int, default=1024, help="tokens of a prefill, timed at the beginning")
    parser.add_argument("--decoded", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="of torch and of the engine; 0: their own choice")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    kinds = options.kinds.split(",")
    model = flash_shaped(kinds, options.layers_of_a_kind, options.device)
    clock = AttentionClock(model)
    prompt = (options.context, options.prefill)
    rows = [("transformers", *measure(model, clock, prompt, options.decoded))]
    for formats in ({"row_format": "bf16", "index_format": "bf16"}, {}):
        attachment = dsv4rt.transformers.attach(
            model, max_context_tokens=options.context + options.decoded + 1, max_step_tokens=options.prefill,
            max_sequences=1, draft_budget_tokens=0, threads=options.threads, **formats)
        name = "attached, " + (formats.get("row_format") or "fp8_ds_mla, mxfp4")
        rows.append((name, *measure(model, clock, prompt, options.decoded)))
        attachment.detach()
    print(f"{options.layers_of_a_kind} layers each of {options.kinds} on {options.device}; attention's seconds")
    print(f"{'':28} prefill {options.prefill:5}   decode at {options.context}")
    for name, first, decode in rows:
        print(f"{name:28} {first:13.4f} {decode:16.5f}   {rows[0][1] / first:5.1f}x {rows[0][2] / decode:5.1f}x")


if __name__ == "__main__":
    main()
