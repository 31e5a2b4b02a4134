"""The own network against transformers' Qwen2ForCausalLM: same weights, same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from models.config import Qwen2Config  # noqa: E402
from models.qwen2 import Qwen2, initial  # noqa: E402
from schemas.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.torch

CONFIGS = {
    "demo": Qwen2Config(),
    "grouped heads": Qwen2Config(hidden_size=64, intermediate_size=96, num_key_value_heads=2, rope_theta=1e6, rms_norm_eps=1e-5),
    "tied head": Qwen2Config(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_key_value_heads=1, tie_word_embeddings=True),
}


def randomised(config: Qwen2Config, seed: int = 3) -> Qwen2:
    """Random biases and norms, too: their initial values would hide a fault."""
    network = initial(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return network


def reference(network: Qwen2, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: the reference is missing")
    network.config.write(folder)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config.from_pretrained(folder)).eval()
    missing, unexpected = model.load_state_dict(network.state_dict(), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if network.config.tie_word_embeddings else [], [])
    return model


@pytest.mark.timeout(300)  # the import of transformers alone is 20 s of CPU
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_equal_the_reference(name: str, tmp_path: Path) -> None:
    own = randomised(CONFIGS[name])
    other = reference(own, tmp_path)
    tokens = torch.randint(0, 58, (3, 40), generator=torch.Generator().manual_seed(5))
    logits, expected = own(tokens, torch.arange(40)[None]), other(tokens).logits
    assert torch.allclose(logits, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(6)) / logits.numel()
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
    for parameter_name, parameter in own.named_parameters():
        assert torch.allclose(parameter.grad, gradients[parameter_name], atol=1e-6, rtol=1e-4), parameter_name


def test_positions_are_what_rotates() -> None:
    network = randomised(CONFIGS["demo"])
    tokens = torch.tensor([[1, 7, 7, 9]])
    shifted = network(tokens, torch.tensor([[5, 6, 7, 8]]))
    apart = network(tokens, torch.tensor([[0, 1, 2, 30]]))
    plain = network(tokens, torch.arange(4)[None])
    assert torch.allclose(plain, shifted, atol=1e-4)  # RoPE is relative
    assert not torch.allclose(plain[0, 3], apart[0, 3], atol=1e-3)


def test_attention_is_the_callers(tmp_path: Path) -> None:
    """Two sequences packed in one row, attention per segment: the numbers of two rows."""
    network = randomised(CONFIGS["grouped heads"])
    first, second = torch.tensor([[1, 8, 9, 3]]), torch.tensor([[1, 20, 3]])

    def per_segment(layer: int, queries: Any, keys: Any, values: Any) -> Any:
        scaled = torch.nn.functional.scaled_dot_product_attention
        parts = zip(*(part.split([4, 3], dim=2) for part in (queries, keys, values)), strict=True)
        return torch.cat([scaled(*part, is_causal=True, enable_gqa=True) for part in parts], dim=2)

    packed = network(torch.cat((first, second), dim=1), torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), per_segment)
    apart = torch.cat((network(first, torch.arange(4)[None]), network(second, torch.arange(3)[None])), dim=1)
    assert torch.allclose(packed, apart, atol=1e-5)


def test_the_demo_has_344_thousand_parameters_and_a_seed_repeats() -> None:
    first, again, other = (initial(Qwen2Config(), seed) for seed in (1, 1, 2))
    assert 343_000 < sum(parameter.numel() for parameter in first.parameters()) < 345_000
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_config_survives_its_file(config: Qwen2Config, tmp_path: Path) -> None:
    config.write(tmp_path)
    assert Qwen2Config.read(tmp_path) == config


@pytest.mark.parametrize("change", [{"model_type": "llama"}, {"hidden_act": "gelu"}, {"use_sliding_window": True}, {"head_dim": 7},
                                    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, {"num_attention_heads": 3}])
def test_what_the_network_cannot_do_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Qwen2Config.from_dict(Qwen2Config().to_dict() | change)


def test_a_missing_config_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        Qwen2Config.read(tmp_path)
