"""How far a trained model's predictions move when the engine computes its attention."""

import pytest
import torch

import dsv4rt.transformers

BITS = dict(max_context_tokens=1024)


@pytest.fixture(scope="module")
def windows():
    import conftest
    import models
    text = models.text_bytes(conftest.TREE)
    return torch.stack([text[start:start + 600] for start in (100, 5000)])


@torch.no_grad()
def predictions(model, ids):
    logits = model(ids).logits.double()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return loss.item(), logits.argmax(-1), logits


@pytest.fixture(scope="module")
def own(trained_model, windows):
    return predictions(trained_model, windows)


def test_attention_matters_to_the_model(trained_model, windows, own):
    """Otherwise the other tests here would say little."""
    for layer in trained_model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **_: (torch.zeros_like(hidden_states), None)
    try:
        loss = predictions(trained_model, windows)[0]
    finally:
        for layer in trained_model.model.layers:
            del layer.self_attn.forward
    print(f"loss {own[0]:.4f}, without attention {loss:.4f}")
    assert loss > own[0] + 0.1


@pytest.mark.parametrize("formats, loss_bound, agreement", [
    (dict(row_format="bf16", index_format="bf16"), 0.001, 0.995),
    (dict(row_format="fp8_ds_mla", index_format="mxfp4"), 0.005, 0.99),
])
def test_loss_and_best_tokens_stay(trained_model, windows, own, formats, loss_bound, agreement):
    attachment = dsv4rt.transformers.attach(trained_model, **BITS, **formats)
    try:
        loss, best, logits = predictions(trained_model, windows)
    finally:
        attachment.detach()
    own_loss, own_best, own_logits = own
    same = (best == own_best).double().mean().item()
    moved = ((logits - own_logits).norm() / own_logits.norm()).item()
    print(f"{trained_model.trained}; {formats}: loss {own_loss:.4f} {loss - own_loss:+.5f}, same best token "
          f"{same:.4f}, logits moved by {moved:.4f}")
    assert own_loss < 3.5, "the model has learned something"
    assert moved > 1e-5, "another attention computed this"
    assert abs(loss - own_loss) <= loss_bound
    assert same >= agreement


def test_text_of_the_trained_model(trained_model, windows):
    prompt = windows[:1, :200]
    own_text = trained_model.generate(prompt, max_new_tokens=60, do_sample=False)
    attachment = dsv4rt.transformers.attach(trained_model, row_format="bf16", index_format="bf16", **BITS)
    try:
        text = trained_model.generate(prompt, max_new_tokens=60, do_sample=False)
        drafted = trained_model.generate(prompt, max_new_tokens=60, do_sample=False, prompt_lookup_num_tokens=4)
    finally:
        attachment.detach()
    assert torch.equal(text, own_text)
    assert torch.equal(drafted, text)
