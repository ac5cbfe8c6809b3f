import math

import numpy as np
import pytest
from expert_layer import BOUNDS, ExpertLayer, as_bf16, error, make_layer, reference, route

from decideploy.demo.modelopt import FP4_VALUES, QuantizedWeight, e4m3_values


def value(weight: QuantizedWeight, row: int, column: int) -> float:
    """One weight by its definition: sign, code, group scale, tensor scale."""
    byte = int(weight.weight[row, column // 2])
    code = byte >> 4 if column % 2 else byte & 0xF
    scale = float(e4m3_values(weight.scale[row : row + 1, column // 16])[0]) * float(weight.scale_2)
    return (-1 if code & 8 else 1) * float(FP4_VALUES[code & 7]) * scale


@pytest.fixture(scope="module")
def layer() -> ExpertLayer:
    return make_layer()


def test_the_reference_is_the_definition_written_out(layer: ExpertLayer) -> None:
    token = 3
    logits = layer.router_logits[token]
    best = sorted(range(len(logits)), key=lambda expert: -logits[expert])[:2]
    shares = [math.exp(logits[expert]) for expert in best]
    wanted = 0.0
    for expert, share in zip(best, shares, strict=True):
        gate, up, down = (layer.experts[expert][f"{name}_proj"] for name in ("gate", "up", "down"))
        inner = []
        for row in range(gate.weight.shape[0]):
            g = sum(value(gate, row, n) * float(x) for n, x in enumerate(layer.hidden[token]))
            u = sum(value(up, row, n) * float(x) for n, x in enumerate(layer.hidden[token]))
            inner.append(g * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) * u)
        wanted += share / sum(shares) * sum(value(down, 5, n) * x for n, x in enumerate(inner))
    assert reference(layer)[token, 5] == pytest.approx(wanted, rel=1e-4)


def test_weights_of_a_token_sum_to_one(layer: ExpertLayer) -> None:
    ids, weights = route(layer.router_logits)
    assert np.allclose(weights.sum(axis=1), 1)
    assert all(len(set(row)) == 2 for row in ids.tolist())


@pytest.mark.parametrize("fault", ["nibbles", "experts", "no up", "scale", "nan"])
def test_a_wrong_kernel_is_beyond_every_bound(layer: ExpertLayer, fault: str) -> None:
    wanted = reference(layer)
    experts = [dict(expert) for expert in layer.experts]
    for expert in experts:
        gate = expert["gate_proj"]
        if fault == "nibbles":
            swapped = (gate.weight >> 4) | (gate.weight << 4)
            expert["gate_proj"] = QuantizedWeight(weight=swapped, scale=gate.scale, scale_2=gate.scale_2)
        if fault == "no up":
            expert["up_proj"] = gate
        if fault == "scale":
            rolled = np.roll(gate.scale, 1, axis=0)
            expert["gate_proj"] = QuantizedWeight(weight=gate.weight, scale=rolled, scale_2=2 * gate.scale_2)
    if fault == "experts":
        experts = experts[1:] + experts[:1]
    found = reference(ExpertLayer(experts, layer.hidden, layer.router_logits))
    if fault == "nan":
        found[0, 0] = np.nan
    assert error(found, wanted) > max(BOUNDS.values())


def test_rounding_to_bf16_is_within_every_bound(layer: ExpertLayer) -> None:
    wanted = reference(layer)
    assert error(as_bf16(wanted), wanted) < min(BOUNDS.values())


def test_no_token_has_experts_of_equal_rank(layer: ExpertLayer) -> None:
    ranked = np.sort(layer.router_logits, axis=1)
    assert (np.diff(ranked, axis=1)[:, -2:] > 0).all()
