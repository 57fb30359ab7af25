#!/usr/bin/env python3
"""Times one DeepSeek-V4-Flash attention layer of Hugging Face transformers on the CPU.

For every (layer kind, dtype) a fresh process builds the layer with random weights, measures a prefill of
--prefill-tokens in one call and single-token decode steps after --decode-context cached tokens, and prints one JSON
object on stdout. The parent imports neither torch nor transformers, so that a child's peak RSS is its own.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

LAYER_TYPES = {"csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}
DTYPES = ("bf16", "fp32")

# DeepSeek-V4-Flash; one layer, everything else of the model is not built.
FLASH = {
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "compress_rope_theta": 1.6e5,
    "max_position_embeddings": 1048576,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}

# torch has no kernel that takes the per-head sink on the CPU (sdpa would silently drop it, flex refuses it), and the
# model class declares the same: eager is the only correct and therefore the fastest choice.
ATTENTION_IMPLEMENTATION = "eager"


def peak_rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Layer:
    """DeepseekV4Attention with what the model around it would prepare: rotary tables, mask, cache."""

    def __init__(self, kind, dtype_name, seed, overrides=None):
        import torch
        from transformers import DynamicCache
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
        from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

        self.torch = torch
        self.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype_name]
        self.config = DeepseekV4Config(**{**FLASH, "layer_types": [LAYER_TYPES[kind]], **(overrides or {})})
        self.config._attn_implementation = ATTENTION_IMPLEMENTATION
        self.new_cache = lambda: DynamicCache(config=self.config)
        torch.manual_seed(seed)
        # Parameters are created in their final dtype: casting afterwards would count the FP32 copy as peak memory.
        torch.set_default_dtype(self.dtype)
        self.layer = v4.DeepseekV4Attention(self.config, 0).eval()
        torch.set_default_dtype(torch.float32)
        self.rotary = v4.DeepseekV4RotaryEmbedding(self.config)
        for name, parameter in self.layer.named_parameters():
            if name.endswith("norm.weight"):
                parameter.data.uniform_(0.8, 1.2)
            elif parameter.dim() == 1 or name.endswith("position_bias"):  # sinks, ape
                parameter.data.normal_(0.0, 0.5)
            else:
                parameter.data.normal_(0.0, parameter.shape[-1] ** -0.5)

    def hidden(self, tokens):
        return self.torch.randn(1, tokens, self.config.hidden_size).to(self.dtype)

    def inputs(self, start, tokens):
        """Arguments for positions [start, start + tokens): what the model computes once for all its layers."""
        torch, window = self.torch, self.config.sliding_window
        query = torch.arange(start, start + tokens)
        key = torch.arange(max(0, start - (window - 1)), start + tokens)  # the cache keeps window - 1 positions
        visible = (key[None] <= query[:, None]) & (key[None] > query[:, None] - window)
        mask = torch.zeros(visible.shape, dtype=self.dtype).masked_fill_(~visible, torch.finfo(self.dtype).min)
        position_ids = query[None]
        probe = torch.empty(0, dtype=self.dtype)
        rope = {kind: self.rotary(probe, position_ids=position_ids, layer_type=kind) for kind in ("main", "compress")}
        return {"position_embeddings": rope, "position_ids": position_ids, "attention_mask": mask[None, None]}

    def run(self, hidden, inputs, cache):
        return self.layer(hidden, past_key_values=cache, **inputs)[0]


def measure(options):
    import torch
    import transformers
    import transformers.models.deepseek_v4.modeling_deepseek_v4  # noqa: F401  part of the import baseline

    load_average = round(os.getloadavg()[0], 2)
    torch.set_num_threads(options.threads)
    baseline_rss = peak_rss_bytes()
    with torch.inference_mode():
        layer = Layer(options.layer, options.dtype, options.seed)

        tokens = options.prefill_tokens
        hidden, inputs = layer.hidden(tokens), layer.inputs(0, tokens)
        prefill_ms = []
        for _ in range(1 + options.prefill_runs):
            cache = layer.new_cache()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            layer.run(hidden, inputs, cache)
            prefill_ms.append((time.perf_counter() - begin) * 1e3)
            prefill_cpus = (time.process_time() - begin_cpu) * 1e3 / prefill_ms[-1]
        del hidden, inputs, cache

        # Small chunks: filling the cache must not raise the peak above that of the timed prefill.
        cache, position = layer.new_cache(), 0
        while position < options.decode_context:
            chunk = min(options.fill_chunk, options.decode_context - position)
            layer.run(layer.hidden(chunk), layer.inputs(position, chunk), cache)
            position += chunk
        decode_ms = []
        for _ in range(options.decode_warmup + options.decode_steps):
            hidden, inputs = layer.hidden(1), layer.inputs(position, 1)
            begin = time.perf_counter()
            layer.run(hidden, inputs, cache)
            decode_ms.append((time.perf_counter() - begin) * 1e3)
            position += 1

    return {
        "engine": "transformers",
        "layer": options.layer,
        "dtype": options.dtype,
        "prefill_tokens": options.prefill_tokens,
        "prefill_ms": round(statistics.median(prefill_ms[1:]), 3),
        "decode_context": options.decode_context,
        "decode_ms": round(statistics.median(decode_ms[options.decode_warmup :]), 3),
        "peak_rss_bytes": peak_rss_bytes(),
        "baseline_rss_bytes": baseline_rss,
        "prefill_ms_min": round(min(prefill_ms[1:]), 3),
        "decode_ms_min": round(min(decode_ms[options.decode_warmup :]), 3),
        "prefill_runs": options.prefill_runs,
        "decode_steps": options.decode_steps,
        "threads": options.threads,
        "prefill_cpus": round(prefill_cpus, 2),  # processors the last prefill got: well below `threads` = busy machine
        "load_average": load_average,
        "attention": ATTENTION_IMPLEMENTATION,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def check(options):
    """Prefill in one call and chunks + single steps must agree, else the timed path is not the model's path."""
    import torch

    torch.set_num_threads(options.threads)
    small = {"hidden_size": 256, "num_attention_heads": 8, "q_lora_rank": 128, "o_lora_rank": 64, "o_groups": 2,
             "index_n_heads": 8, "index_topk": 512}  # fmt: skip
    tokens, worst = 400, 0.0
    with torch.inference_mode():
        for kind in LAYER_TYPES:
            layer = Layer(kind, "fp32", options.seed, small)
            hidden = layer.hidden(tokens)
            whole = layer.run(hidden, layer.inputs(0, tokens), layer.new_cache())
            cache, parts, position = layer.new_cache(), [], 0
            for chunk in (128, 100, 97) + (1,) * (tokens - 325):
                part = hidden[:, position : position + chunk]
                parts.append(layer.run(part, layer.inputs(position, chunk), cache))
                position += chunk
            error = ((torch.cat(parts, 1) - whole).norm() / whole.norm()).item()
            print(f"check {kind}: relative difference {error:.2e}", file=sys.stderr)
            worst = max(worst, error)
    return 0 if worst < 1e-4 else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", default=",".join(LAYER_TYPES), help="csa,hca")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="bf16,fp32")
    parser.add_argument("--prefill-tokens", type=int, default=1024)
    parser.add_argument("--prefill-runs", type=int, default=5, help="timed runs after one warm-up")
    parser.add_argument("--decode-context", type=int, default=2048)
    parser.add_argument("--decode-steps", type=int, default=32, help="timed steps")
    parser.add_argument("--decode-warmup", type=int, default=3)
    parser.add_argument("--fill-chunk", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="check chunked against whole prefill, no timing")
    parser.add_argument("--layer", choices=LAYER_TYPES, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=DTYPES, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.check:
        return check(options)
    if options.layer:
        print(json.dumps(measure(options)), flush=True)
        return 0
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads),
                   "TRANSFORMERS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    for layer in options.layers.split(","):
        for dtype in options.dtypes.split(","):
            command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--layer", layer, "--dtype", dtype]
            subprocess.run(command, check=True, env=environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
