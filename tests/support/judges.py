"""Independent judges: tiny models of `transformers`, and its own pieces widened to fp64."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def tiny_llama(folder: Path, *, kv_heads: int, tied: bool, seed: int = 0) -> LlamaForCausalLM:
    """Save a random Llama of 3 layers with grouped heads into `folder` and return it in fp32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=12,
        vocab_size=301,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


def widen_norms(model: torch.nn.Module) -> torch.nn.Module:
    """Replace transformers' RMSNorm, which rounds to fp32, by torch's own in fp64."""
    for name, child in list(model.named_children()):
        if isinstance(child, LlamaRMSNorm):
            norm = torch.nn.RMSNorm(
                child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64
            )
            norm.weight = child.weight
            setattr(model, name, norm)
        else:
            widen_norms(child)
    return model
