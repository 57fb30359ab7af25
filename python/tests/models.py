"""Small models of transformers for the tests."""

import time

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

KINDS = {"swa": "sliding_attention", "csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}
YARN = {"rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 65536}


def config(layers, hidden=128, heads=8, vocabulary=256, topk=16, **more):
    values = dict(
        vocab_size=vocabulary, hidden_size=hidden, moe_intermediate_size=128, num_hidden_layers=len(layers),
        num_attention_heads=heads, q_lora_rank=64, o_groups=2, o_lora_rank=64, index_n_heads=8, index_topk=topk,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, layer_types=[KINDS[kind] for kind in layers],
        mlp_layer_types=["hash_moe"] + ["moe"] * (len(layers) - 1), max_position_embeddings=65536, rope_parameters=YARN,
        eos_token_id=None, bos_token_id=None, pad_token_id=0)
    return DeepseekV4Config(**{**values, **more})


def _fill_routes(model):
    for name, buffer in model.named_buffers():
        if "tid2eid" in name:
            experts = model.config.n_routed_experts
            picks = [torch.randperm(experts)[:buffer.shape[1]] for _ in range(buffer.shape[0])]
            buffer.copy_(torch.stack(picks))


def round_to_bf16(model):
    """FP32 weights with BF16's values: what an engine computes with is then the same."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    return model


def random_model(seed=4):
    """Weights at random. Every expert is taken and every row of the prompts that tests use is selected: choices between
    almost equal numbers would otherwise decide what text comes out, in BF16 and FP32 of transformers alike."""
    torch.manual_seed(seed)
    model = DeepseekV4ForCausalLM(config(["swa", "csa", "hca", "csa"], topk=256, num_experts_per_tok=4)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "position_bias" in name:
                parameter.normal_(0, 0.5)
            elif "sinks" in name or "embed" in name:
                parameter.normal_(0, 1)
            elif "o_b_proj" in name:
                parameter.normal_(0, 0.3 * parameter.shape[-1] ** -0.5)
            elif parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif "norm" in name:
                parameter.normal_(1, 0.1)
        _fill_routes(model)
    return round_to_bf16(model)


def text_bytes(tree):
    """Text for training: one long document."""
    return torch.tensor(list((tree / "docs" / "cache.md").read_bytes()), dtype=torch.long)


def trained_model(text, seconds=90.0, width=160, rate=3e-3, seed=1):
    """A model trained for so many seconds on windows of the text."""
    torch.manual_seed(seed)
    model = DeepseekV4ForCausalLM(config(["swa", "csa", "hca", "csa"], hc_mult=2, hc_sinkhorn_iters=3)).train()
    with torch.no_grad():
        _fill_routes(model)
        for name, parameter in model.named_parameters():
            if "embed" in name:
                parameter.normal_(0, 1)
            elif parameter.dim() >= 2 and "_hc" not in name and "position_bias" not in name:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    begin = time.monotonic()
    losses = []
    while (used := time.monotonic() - begin) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (len(losses) + 1) / 5) * max(0.02, 1 - used / seconds)
        start = int(torch.randint(len(text) - width - 1, (1,)))
        ids = text[start:start + width].unsqueeze(0)
        loss = model(ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.trained = f"{len(losses)} steps, loss {sum(losses[-8:]) / len(losses[-8:]):.3f}"
    return round_to_bf16(model.eval())
