import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decideploy.hardware.smoke_layer import (
    BOUNDS,
    INPUT_SCALES,
    STEPS,
    ExpertLayer,
    Values,
    as_bf16,
    gelu,
    make_layer,
    reference,
    relative_error,
    route,
)
from decideploy.nvfp4 import (
    FP4_VALUES,
    QuantizedWeight,
    dequantize,
    e4m3_values,
    quantize,
)


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


@pytest.mark.parametrize("fault", ["nibbles", "experts", "no up", "scale", "rows"])
def test_a_wrong_kernel_is_beyond_every_bound(layer: ExpertLayer, fault: str) -> None:
    experts = [dict(expert) for expert in layer.experts]
    for expert in experts:
        gate = expert["gate_proj"]
        changes = {
            "nibbles": {"weight": (gate.weight >> 4) | (gate.weight << 4)},
            "scale": {"scale_2": 2 * gate.scale_2},
            "rows": {"scale": np.roll(gate.scale, 1, axis=0)},
        }
        expert["gate_proj"] = replace(gate, **changes.get(fault, {}))
        if fault == "no up":
            expert["up_proj"] = gate
    if fault == "experts":
        experts = experts[1:] + experts[:1]
    found = relative_error(reference(replace(layer, experts=tuple(experts))), reference(layer))
    assert found is not None
    assert found > max(BOUNDS.values())


def test_one_wrong_step_is_not_hidden_by_the_others(layer: ExpertLayer) -> None:
    wanted = reference(layer)
    found = wanted.copy()
    found[: STEPS[0]] *= 2
    assert relative_error(found, wanted) == pytest.approx(1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_have_no_error(layer: ExpertLayer, value: float) -> None:
    found = reference(layer)
    found[0, 0] = value
    assert relative_error(found, reference(layer)) is None


def test_sixteen_bit_arithmetic_is_within_the_bound(layer: ExpertLayer) -> None:
    found = relative_error(in_torch(layer), reference(layer))
    assert found is not None
    assert 0.001 < found < BOUNDS["W4A16"] / 2


def test_four_bit_activations_are_within_their_bound(layer: ExpertLayer) -> None:
    found = relative_error(in_torch(layer, activation_bits=4), reference(layer))
    assert found is not None
    assert BOUNDS["W4A16"] < found < BOUNDS["W4A4"] * 2 / 3


def in_torch(layer: ExpertLayer, activation_bits: int = 16) -> Values:
    """Token by token in bfloat16, the activations of each product cut to ``activation_bits``."""
    torch = pytest.importorskip("torch")

    def cut(row: Any, scale: float) -> Any:
        if activation_bits == 16:
            return row
        values = dequantize(quantize(row.float().numpy()[None], np.float32(scale)))
        return torch.from_numpy(values[0]).bfloat16()

    experts = [
        {name: torch.from_numpy(dequantize(weight)).bfloat16() for name, weight in expert.items()}
        for expert in layer.experts
    ]
    out = torch.zeros(layer.hidden.shape)
    for token, logits in enumerate(torch.from_numpy(layer.router_logits)):
        shares, ids = torch.topk(torch.softmax(logits, 0), 2)
        state = cut(torch.from_numpy(layer.hidden[token]).bfloat16(), INPUT_SCALES[0])
        for share, expert in zip(shares / shares.sum(), ids.tolist(), strict=True):
            gate, up, down = (experts[expert][f"{name}_proj"] for name in ("gate", "up", "down"))
            inner = torch.nn.functional.gelu(gate @ state, approximate="tanh") * (up @ state)
            out[token] += share * (down @ cut(inner, INPUT_SCALES[1])).float()
    values: Values = out.numpy()
    return values


def test_gelu_is_the_tanh_form() -> None:
    assert gelu(np.float32([1.0, -2.0])) == pytest.approx([0.841192, -0.045402], abs=1e-5)


def test_no_token_has_experts_of_equal_rank(layer: ExpertLayer) -> None:
    assert (np.diff(np.sort(layer.router_logits, axis=1), axis=1) > 0.1).all()


def test_inputs_are_what_bf16_holds(layer: ExpertLayer) -> None:
    for values in (layer.hidden, layer.router_logits):
        assert (as_bf16(values) == values).all()
