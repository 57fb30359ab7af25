"""The library under a `DeepseekV4ForCausalLM` of transformers; needs torch and transformers.

    model = DeepseekV4ForCausalLM.from_pretrained(directory)
    attachment = dsv4rt.transformers.attach(model, max_context_tokens=8192)
    model.generate(**inputs, max_new_tokens=100)
"""

from dsv4rt.transformers.attachment import Attachment, attach
from dsv4rt.transformers.cache import EngineCache

__all__ = ["Attachment", "EngineCache", "attach"]
