"""Whole models with matrices of few bits, and models whose logits do not depend on company."""

from pathlib import Path
from typing import Literal

import pytest
import torch

from engine.gguf import GGMLType, GGUFFile
from engine.loading import load_runner
from engine.messages import EngineConfig
from engine.models.decoder import Decoder
from engine.step import Span, Step
from engine.weights import load
from engine.weights.dequantize import dequantize
from engine.weights.grouped import read_grouped
from kernels import Kernels, Products
from kernels.cpu.integer_tiles import HAS_VNNI
from kernels.grouped import GroupedMatrix
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.gguf_files import Tensors, gguf_bytes, write_model
from tests.engine.gguf_quants import random_groups
from tests.engine.paged import make_pool, make_sequence, run_in_chunks

GROUPED = [GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q8_0]
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "attention_bias": True}
CAPITAL_OF_FRANCE_IS = [504, 3575, 282, 4649, 314]  # of the default model
PARIS = 7042
PROMPTS = [list(range(5, 42)), [7], list(range(90, 0, -1))]


@pytest.mark.parametrize("kind", GROUPED, ids=lambda kind: kind.name)
def test_a_matrix_left_as_it_is_has_the_same_numbers(kind: GGMLType, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gguf_bytes({}, {"tensor": (kind, (5, 96), random_groups(kind, 15, seed=1))}))
    file = GGUFFile(path)

    found = read_grouped(file, "tensor")

    assert found.shape == (5, 96)
    assert torch.equal(found.widened(), dequantize(file, "tensor", torch.float32))


def _quantized_model(path: Path, kinds: dict[str, GGMLType], default: GGMLType) -> Path:
    """A model whose matrices are of the kinds that their names contain, and random."""
    plain = GGUFFile(write_model(random_model("llama", **SHAPE), path))
    tensors: Tensors = {}
    for number, (name, tensor) in enumerate(plain.tensors.items()):
        content = plain.data(name).tobytes()
        kind = tensor.type
        if len(tensor.shape) == 2:
            kind = next((kind for part, kind in kinds.items() if part in name), default)
            content = random_groups(kind, tensor.shape[0] * tensor.shape[1] // 32, seed=number)
        tensors[name] = (kind, tensor.shape, content)
    path.write_bytes(gguf_bytes(plain.metadata, tensors))
    return path


@torch.inference_mode()
def _logits(path: Path, kernels: Kernels, *, packed: bool = False) -> torch.Tensor:
    config, weights = load(path, torch.float32, packed=packed)
    decoder = Decoder(config, weights, kernels)
    return torch.cat(run_in_chunks(decoder, make_pool(config, kernels, 20), PROMPTS, [5, 1, 64]))


@pytest.mark.parametrize(
    ("kinds", "default"),
    [
        ({}, GGMLType.Q4_0),
        ({}, GGMLType.Q4_1),
        ({"token_embd": GGMLType.Q8_0}, GGMLType.Q4_1),
        ({"attn_v": GGMLType.Q8_0}, GGMLType.Q4_1),
        ({"attn_v": GGMLType.Q5_0, "ffn_down": GGMLType.Q5_1}, GGMLType.Q4_0),
    ],
    ids=["halves", "halves with minima", "embedding of bytes", "unlike parts", "others become bytes"],
)
def test_a_packed_model_is_near_the_same_model_in_full(
    kinds: dict[str, GGMLType], default: GGMLType, tmp_path: Path
) -> None:
    path = _quantized_model(tmp_path / "model.gguf", kinds, default)

    found = _logits(path, Kernels.cpu("packed", deterministic=True), packed=True)

    plain, full = _logits(path, Kernels.reference(), packed=True), _logits(path, Kernels.cpu())
    # Where numbers lie between two codes, the last bit of a sum decides: the two need not agree more closely.
    assert (found - plain).norm() < 0.01 * full.norm()
    assert (found - full).norm() < 0.1 * full.norm()


def test_a_packed_model_keeps_what_the_file_holds(tmp_path: Path) -> None:
    path = _quantized_model(tmp_path / "model.gguf", {"ffn_up": GGMLType.Q5_0}, GGMLType.Q4_1)

    _, weights = load(path, torch.bfloat16, packed=True)

    up = weights["layers.0.up_proj.weight"]
    assert isinstance(up, torch.Tensor)
    assert up.dtype == torch.bfloat16
    assert isinstance(weights["norm.weight"], torch.Tensor)
    assert isinstance(weights["layers.0.q_proj.bias"], torch.Tensor)
    others = [name for name in weights if name.endswith("proj.weight") and "up_proj" not in name]
    assert all(isinstance(weights[name], GroupedMatrix) for name in others)


def test_int8_products_of_a_folder_are_near_those_in_full(tmp_path: Path) -> None:
    path = write_checkpoint(random_model("llama", **SHAPE), tmp_path)
    expected = _logits(path, Kernels.cpu())

    found = _logits(path, Kernels.cpu("int8", deterministic=True))

    assert not torch.equal(found, expected)
    assert (found - expected).norm() < 0.08 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("products", "deterministic"), [("full", True), ("int8", True), ("packed", True), ("int8", False)]
)
@torch.inference_mode()
def test_a_deterministic_models_logits_do_not_depend_on_company_or_chunks(
    products: Products, deterministic: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    kernels = Kernels.cpu(products, deterministic=deterministic)
    path = _quantized_model(tmp_path / "model.gguf", {}, GGMLType.Q4_1)
    config, weights = load(path, dtype, packed=products == "packed")
    decoder = Decoder(config, weights, kernels)

    together = run_in_chunks(decoder, make_pool(config, kernels, 20, dtype), PROMPTS, [5, 1, 64])

    for prompt, logits, chunk in zip(PROMPTS, together, [64, 1, 33], strict=True):
        alone = run_in_chunks(decoder, make_pool(config, kernels, 20, dtype), [prompt], [chunk])[0]
        assert torch.equal(alone, logits)


def test_stored_blocks_of_other_products_are_foreign(tmp_path: Path) -> None:
    path = _quantized_model(tmp_path / "model.gguf", {}, GGMLType.Q4_1)
    kinds: list[Products] = ["full", "int8", "packed"]

    marks = {
        load_runner(
            EngineConfig(model=str(path), products=products, kv_bytes=1 << 20, disk_folder=str(tmp_path))
        ).fingerprint
        for products in kinds
    }

    assert len(marks) == 3
    assert b"" not in marks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_that_nobody_chose_are_the_fastest_that_are_as_good(
    dtype: Literal["float32", "bfloat16"], tmp_path: Path
) -> None:
    path = _quantized_model(tmp_path / "model.gguf", {}, GGMLType.Q4_1)
    best: Products = "int8" if HAS_VNNI and dtype == "bfloat16" else "full"
    kinds: list[Literal["auto"] | Products] = ["auto", best]

    marks = {
        load_runner(
            EngineConfig(
                model=str(path),
                products=products,
                dtype=dtype,
                kv_bytes=1 << 20,
                disk_folder=str(tmp_path),
            )
        ).fingerprint
        for products in kinds
    }

    assert EngineConfig(model=str(path)).products == "auto"
    assert len(marks) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_has_products_in_full(dtype: torch.dtype) -> None:
    assert Kernels.best_products("cuda", dtype) == "full"


@pytest.mark.parametrize("products", ["int8", "packed"])
def test_the_default_model_still_knows_the_capital_of_france(
    products: Products, default_model_path: Path
) -> None:
    config = EngineConfig(
        model=str(default_model_path), products=products, deterministic=True, kv_bytes=1 << 24
    )
    sequence = make_sequence(CAPITAL_OF_FRANCE_IS, [0])

    result = load_runner(config).run(Step((Span(sequence, 0, sequence.num_tokens),)))

    assert result.spans[0].draws[0].token_id == PARIS
