"""The models that benchmarks compile: three language models and three for images, from the configurations of
transformers and with random weights, so that nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import demo  # keeps transformers, imported later, from asking the network

SEED = 1234

SIZE = demo.FULL
IMAGES = 4
PIXELS = 224
CLASSES = 1000


@dataclass(frozen=True)
class Model:
    """A model with a batch for inference. With ``labels`` beside that, the model returns a loss."""

    name: str
    module: torch.nn.Module
    batch: dict[str, torch.Tensor]
    labels: torch.Tensor


def bert() -> Model:
    """The demo's masked language model after BERT."""
    return _language_model("BERT", demo.bert(SIZE))


def gpt2() -> Model:
    """The demo's language model after GPT-2."""
    module = demo.gpt2(SIZE)
    # Otherwise transformers warns while the loss is traced, which would cut the graph in two.
    module.loss_type = "ForCausalLM"
    return _language_model("GPT-2", module)


def llama() -> Model:
    """A language model after Llama: RMS norms, rotary positions, gated units, two heads for each key and value."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=SIZE.vocabulary,
        hidden_size=SIZE.hidden,
        intermediate_size=SIZE.hidden * 11 // 4,
        num_hidden_layers=SIZE.layers,
        num_attention_heads=SIZE.heads,
        num_key_value_heads=SIZE.heads // 2,
        max_position_embeddings=SIZE.length,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    return _language_model("Llama", LlamaForCausalLM(config))


def resnet18() -> Model:
    """ResNet-18 on images of 224 by 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=CLASSES,
        problem_type="single_label_classification",
    )
    return _image_model("ResNet-18", ResNetForImageClassification(config))


def convnext() -> Model:
    """A small ConvNeXt: depthwise convolutions, layer norms over channels, GELU."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[48, 96, 192, 384],
        depths=[2, 2, 4, 2],
        num_labels=CLASSES,
        problem_type="single_label_classification",
    )
    return _image_model("ConvNeXt", ConvNextForImageClassification(config))


def swin() -> Model:
    """A small Swin transformer: attention in shifted windows."""
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        embed_dim=48,
        depths=[2, 2, 2, 2],
        num_heads=[2, 4, 8, 16],
        num_labels=CLASSES,
        problem_type="single_label_classification",
    )
    return _image_model("Swin", SwinForImageClassification(config))


MODELS: dict[str, Callable[[], Model]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "resnet18": resnet18,
    "convnext": convnext,
    "swin": swin,
}


def _image_model(name: str, module: torch.nn.Module) -> Model:
    images = torch.randn(IMAGES, 3, PIXELS, PIXELS)
    return Model(name, module, {"pixel_values": images}, torch.randint(0, CLASSES, (IMAGES,)))


def _language_model(name: str, module: torch.nn.Module) -> Model:
    ids = torch.randint(5, SIZE.vocabulary, (SIZE.batch, SIZE.length))
    mask = torch.ones_like(ids)
    mask[0, SIZE.length * 3 // 4 :] = 0
    return Model(name, module, {"input_ids": ids, "attention_mask": mask}, ids)
