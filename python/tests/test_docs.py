"""The code blocks of docs/python.md run, one after the other, as one program."""

import re

import conftest


def test_the_guide_runs(golden, random_model):
    import torch
    text = (conftest.TREE / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 7
    names = {"checkpoint": str(golden), "model": random_model, "prompt_ids": torch.arange(1, 60).unsqueeze(0)}
    line_of = {block: text[:text.index(block)].count("\n") for block in blocks}
    for block in blocks:
        exec(compile("\n" * line_of[block] + block, "docs/python.md", "exec"), names)
