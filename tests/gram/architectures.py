"""Real architectures at reduced size, by their own unmodified classes, with random weights and a small batch each.

Nothing is subclassed, wrapped or patched: what the engine meets here is what a user hands to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = dict[str, Tensor]
VOCABULARY, PAD, WIDTH, CLASSES = 40, 1, 16, 5


@dataclass(frozen=True)
class Architecture:
    """A model, a batch for it, and its losses.

    Attributes:
        name: shown by pytest.
        build: the model in train mode.
        batch: keyword arguments of the model, with ``labels``.
        shift: the logits of a position predict the NEXT token (causal language models).
        random: dropout or stochastic depth is active, so an example cannot be run again alone.
        float32_inside: parts of it compute in float32 whatever the model's dtype (Llama's and T5's norms).
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    shift: bool = False
    random: bool = False
    float32_inside: bool = False

    def model(self, dtype: torch.dtype) -> nn.Module:
        """Build it with weights at which no gradient is negligible."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return randomize(self.build().train()).to(dtype)

    def inputs(self, dtype: torch.dtype) -> Batch:
        """The batch in the model's precision."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            batch = self.batch()
        return {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}

    def run(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """One forward pass: each example's share (B,) of the batch loss, and the model's own batch loss."""
        if "images" in batch:
            logits = model(batch["images"])
            own = F.cross_entropy(logits, batch["labels"])
        else:
            output = model(**batch)
            logits, own = output.logits, output.loss
        labels = batch["labels"]
        if self.shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none").reshape(len(labels), -1)
        return losses.sum(dim=1) / (labels != -100).sum(), own


def randomize(model: nn.Module) -> nn.Module:
    """Random values for all parameters: as built, LoRA's B, heads and layer scales make most gradients zero."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=p[0].numel() ** -0.5)
            else:
                p.add_(0.2 * torch.randn_like(p))
    return model


def tokens(batch: int, length: int, *, padded: bool = False, mask: bool = True) -> Batch:
    """Token ids that are also the labels; ``padded``: of unequal length, with labels of -100 on the padding."""
    ids = torch.randint(2, VOCABULARY, (batch, length))
    if not padded:
        return {"input_ids": ids, "labels": ids.clone()}
    lengths = length - torch.arange(batch) % (length - 1)
    real = torch.arange(length) < lengths[:, None]
    found = {"input_ids": ids.where(real, PAD), "labels": ids.where(real, -100)}
    return found | ({"attention_mask": real.long()} if mask else {})


def left_padded(batch: int, length: int) -> Batch:
    """Tokens of unequal length, the padding before them."""
    return {key: value.flip(1) for key, value in tokens(batch, length, padded=True).items()}


def masked_tokens(batch: int, length: int, *, padded: bool = False, mask: bool = True) -> Batch:
    """Token ids with labels on about half of the positions, the first one of each example among them."""
    found = tokens(batch, length, padded=padded, mask=mask)
    kept = torch.rand(batch, length) < 0.5
    kept[:, 0] = True
    return found | {"labels": found["labels"].where(kept, -100)}


def pair_of_texts(batch: int, source: int, target: int, *, padded: bool = False) -> Batch:
    """Token ids for an encoder and labels for a decoder."""
    return tokens(batch, source, padded=padded) | {"labels": tokens(batch, target, padded=padded)["labels"]}


def one_without_labels(batch: int, length: int) -> Batch:
    """The first example has no labelled token: its gradient is zero."""
    found = tokens(batch, length)
    found["labels"][0] = -100
    return found


def classified(batch: Batch) -> Batch:
    """The same inputs with one class an example."""
    return batch | {"labels": torch.randint(0, CLASSES, (len(batch["labels"]),))}


def images(batch: int, size: int, key: str = "images") -> Batch:
    return {key: torch.randn(batch, 3, size, size), "labels": torch.randint(0, CLASSES, (batch,))}


def hugging_face(model: str, config: str, **settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, model)(getattr(transformers, config)(**settings))


SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": VOCABULARY}
IDS = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 0}


def gpt2(dropout: float = 0.0, **more: Any) -> nn.Module:
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 16}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return hugging_face("GPT2LMHeadModel", "GPT2Config", **sizes, **dropouts, **IDS, **more)


def llama(tied: bool = True, **more: Any) -> nn.Module:
    sizes = SIZES | {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    return hugging_face("LlamaForCausalLM", "LlamaConfig", **sizes, **IDS, tie_word_embeddings=tied, **more)


def gpt_neox(**more: Any) -> nn.Module:
    return hugging_face("GPTNeoXForCausalLM", "GPTNeoXConfig", **SIZES, intermediate_size=24, **IDS, **more)


def opt(**more: Any) -> nn.Module:
    settings = SIZES | IDS | {"ffn_dim": 24, "max_position_embeddings": 16, "dropout": 0.0} | more
    settings.setdefault("word_embed_proj_dim", WIDTH)
    return hugging_face("OPTForCausalLM", "OPTConfig", **settings)


def bert(model: str = "BertForMaskedLM", dropout: float = 0.0, **more: Any) -> nn.Module:
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    sizes = SIZES | {"intermediate_size": 24, "max_position_embeddings": 16, "num_labels": CLASSES}
    return hugging_face(model, "BertConfig", **sizes, **dropouts, pad_token_id=PAD, **more)


def t5(dropout: float = 0.0, **more: Any) -> nn.Module:
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": VOCABULARY}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 8}
    starts = {"pad_token_id": PAD, "decoder_start_token_id": 0, "dropout_rate": dropout}
    return hugging_face("T5ForConditionalGeneration", "T5Config", **sizes, **buckets, **starts, **more)


def only(model: nn.Module, *parts: str) -> nn.Module:
    """Train nothing but the parameters whose name has one of these parts: small ones, lost among all others."""
    for name, p in model.named_parameters():
        p.requires_grad_(any(part in name for part in parts))
    return model


def vit(dropout: float = 0.0) -> nn.Module:
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    sizes = SIZES | {"intermediate_size": 24, "image_size": 16, "patch_size": 8, "num_labels": CLASSES}
    del sizes["vocab_size"]
    return hugging_face("ViTForImageClassification", "ViTConfig", **sizes, **dropouts)


def lora(base: Callable[[], nn.Module], targets: list[str], dropout: float = 0.0, **settings: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        base(), peft.LoraConfig(r=2, lora_alpha=3, target_modules=targets, lora_dropout=dropout, **settings)
    )


def torchvision_vit(dropout: float = 0.0) -> nn.Module:
    from torchvision.models import VisionTransformer

    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": WIDTH, "mlp_dim": 24}
    return VisionTransformer(**sizes, dropout=dropout, attention_dropout=dropout, num_classes=CLASSES)


def convnext(depth_drop: float = 0.0) -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 12, 2), CNBlockConfig(12, None, 2)]
    return ConvNeXt(blocks, stochastic_depth_prob=depth_drop, num_classes=CLASSES)


def swin(depth_drop: float = 0.0) -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer(
        [4, 4], 8, [2, 2], [2, 2], [2, 2], stochastic_depth_prob=depth_drop, num_classes=CLASSES, mlp_ratio=2.0
    )


def resnet18(groups: int = 4) -> nn.Module:
    from torchvision.models import resnet18 as build

    return build(norm_layer=lambda channels: nn.GroupNorm(groups, channels), num_classes=CLASSES)


def language(name: str, build: Callable[[], nn.Module], batch: Callable[[], Batch], **flags: bool) -> Architecture:
    return Architecture(name, build, batch, shift=True, **flags)


GPT2_LORA, LLAMA_LORA = ["c_attn", "c_proj", "c_fc"], ["q_proj", "v_proj", "down_proj"]

ARCHITECTURES = (
    language("gpt2", gpt2, lambda: tokens(3, 6)),
    language("gpt2, T = B", gpt2, lambda: tokens(4, 4)),
    language("gpt2, padded", gpt2, lambda: tokens(4, 7, padded=True)),
    language("gpt2, padding without mask", gpt2, lambda: tokens(4, 7, padded=True, mask=False)),
    language("gpt2, an example without labels", gpt2, lambda: one_without_labels(3, 5)),
    language("gpt2, eager attention", lambda: gpt2(attn_implementation="eager"), lambda: tokens(3, 6)),
    language("gpt2, dropout", lambda: gpt2(0.1), lambda: tokens(4, 6, padded=True), random=True),
    language("gpt2, dropout, T = B", lambda: gpt2(0.1), lambda: tokens(4, 4), random=True),
    language("llama", llama, lambda: tokens(3, 6), float32_inside=True),
    language("llama, T = B, padded", llama, lambda: tokens(5, 5, padded=True), float32_inside=True),
    language("llama, untied", lambda: llama(tied=False), lambda: tokens(3, 6), float32_inside=True),
    language("gpt-neox", gpt_neox, lambda: tokens(3, 6)),
    language("gpt-neox, T = B, padded", gpt_neox, lambda: tokens(4, 4, padded=True)),
    language("gpt-neox, tied, sequential", lambda: gpt_neox(tie_word_embeddings=True, use_parallel_residual=False),
             lambda: tokens(3, 6)),
    language("opt", opt, lambda: tokens(3, 6)),
    language("opt, T = B, padded", opt, lambda: tokens(4, 4, padded=True)),
    language("opt, norm after, projected", lambda: opt(do_layer_norm_before=False, word_embed_proj_dim=12),
             lambda: tokens(3, 5, padded=True)),
    language("opt, dropout", lambda: opt(dropout=0.1, attention_dropout=0.1), lambda: tokens(4, 4), random=True),
    language("opt, padded on the left", opt, lambda: left_padded(3, 5)),
    Architecture("bert masked lm", bert, lambda: masked_tokens(3, 6)),
    Architecture("bert masked lm, T = B, padded", bert, lambda: masked_tokens(4, 4, padded=True)),
    Architecture("bert masked lm, padding without mask", bert, lambda: masked_tokens(4, 6, padded=True, mask=False)),
    Architecture("bert masked lm, dropout", lambda: bert(dropout=0.1), lambda: masked_tokens(4, 5, padded=True),
                 random=True),
    Architecture("bert classifier, padded", lambda: bert("BertForSequenceClassification"),
                 lambda: classified(tokens(4, 6, padded=True))),
    Architecture("bert classifier, dropout, T = B", lambda: bert("BertForSequenceClassification", 0.1),
                 lambda: classified(tokens(4, 4)), random=True),
    Architecture("t5", t5, lambda: pair_of_texts(3, 6, 5), float32_inside=True),
    Architecture("t5, T = B", t5, lambda: pair_of_texts(4, 4, 4), float32_inside=True),
    Architecture("t5, padded", t5, lambda: pair_of_texts(4, 6, 5, padded=True), float32_inside=True),
    Architecture("t5, T = B, padded", t5, lambda: pair_of_texts(4, 4, 4, padded=True), float32_inside=True),
    Architecture("t5, eager attention", lambda: t5(attn_implementation="eager"), lambda: pair_of_texts(3, 5, 4),
                 float32_inside=True),
    Architecture("t5, dropout", lambda: t5(0.1), lambda: pair_of_texts(3, 6, 3), random=True, float32_inside=True),
    Architecture("t5 gated, dropout, padded", lambda: t5(0.1, feed_forward_proj="gated-gelu"),
                 lambda: pair_of_texts(4, 5, 4, padded=True), random=True, float32_inside=True),
    Architecture("t5, dropout, padded, only position bias and norms",
                 lambda: only(t5(0.1), "relative_attention_bias", "layer_norm"),
                 lambda: pair_of_texts(4, 5, 4, padded=True), random=True, float32_inside=True),
    Architecture("t5, T = B, only position bias", lambda: only(t5(), "relative_attention_bias"),
                 lambda: pair_of_texts(4, 4, 4), float32_inside=True),
    Architecture("vit", vit, lambda: images(3, 16, "pixel_values")),
    Architecture("vit, dropout, T = B", lambda: vit(0.1), lambda: images(5, 16, "pixel_values"), random=True),
    language("gpt2, lora", lambda: lora(gpt2, GPT2_LORA, fan_in_fan_out=True), lambda: tokens(3, 6)),
    language("gpt2, lora, dropout, T = B", lambda: lora(lambda: gpt2(0.1), GPT2_LORA, 0.1, fan_in_fan_out=True),
             lambda: tokens(4, 4), random=True),
    language("llama, lora, padded", lambda: lora(llama, LLAMA_LORA), lambda: tokens(4, 6, padded=True),
             float32_inside=True),
    Architecture("torchvision vit", torchvision_vit, lambda: images(3, 16)),
    Architecture("torchvision vit, T = B", torchvision_vit, lambda: images(5, 16)),
    Architecture("torchvision vit, dropout", lambda: torchvision_vit(0.1), lambda: images(4, 16), random=True),
    Architecture("convnext", convnext, lambda: images(3, 32)),
    Architecture("convnext, stochastic depth", lambda: convnext(0.5), lambda: images(5, 32), random=True),
    Architecture("swin", swin, lambda: images(3, 32)),
    Architecture("swin, padded windows, T = B", swin, lambda: images(4, 28)),
    Architecture("swin, stochastic depth", lambda: swin(0.5), lambda: images(5, 32), random=True),
    Architecture("swin, stochastic depth, only position bias", lambda: only(swin(0.3), "relative_position_bias_table"),
                 lambda: images(4, 32), random=True),
    Architecture("resnet18 with GroupNorm", resnet18, lambda: images(3, 32)),
)  # fmt: skip


def architecture(name: str) -> Architecture:
    """The architecture of that name."""
    return next(a for a in ARCHITECTURES if a.name == name)
