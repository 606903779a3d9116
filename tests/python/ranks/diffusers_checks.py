# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers with attention backend "tangram" train some steps beside PyTorch's own attention, in one process
or over the ranks of diffusers' context parallelism. Arguments: models. stacks_test.py starts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import stacks  # noqa: E402

stacks.use("diffusers")
from diffusers import ContextParallelConfig, QwenImageTransformer2DModel, WanTransformer3DModel  # noqa: E402
from diffusers.models.attention_dispatch import attention_backend, dispatch_attention_fn  # noqa: E402

import tangram  # noqa: E402
from tangram.integrations.diffusers import register  # noqa: E402

STEPS = 3


def wan():
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=24,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=48,
        num_layers=2,
        rope_max_seq_len=32,
    )


def video(step):
    generator = torch.Generator().manual_seed(step)
    hidden = torch.randn(2, 4, 3, 8, 8, generator=generator)
    text = torch.randn(2, 5, 16, generator=generator)
    return {"hidden_states": hidden, "timestep": torch.tensor([3, 40]), "encoder_hidden_states": text}


def qwen_image():
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )


def image(step):
    """Its text is padded, which the model says by a mask of keys."""
    generator = torch.Generator().manual_seed(step)
    hidden = torch.randn(2, 16, 16, generator=generator)
    text = torch.randn(2, 8, 16, generator=generator)
    given = {"hidden_states": hidden, "encoder_hidden_states": text, "timestep": torch.tensor([0.3, 0.7])}
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 4:] = False
    return {**given, "encoder_hidden_states_mask": mask, "img_shapes": [[(1, 4, 4)]] * 2}


def summed(x):
    dist.all_reduce(x := x.detach().clone())
    return x


def split(model, kind):
    """Diffusers' own context parallelism, which asks for an accelerator."""
    torch._C._get_accelerator = lambda: torch.device("cpu")
    torch.accelerator.device_count = lambda: 1
    model.enable_parallelism(config=ContextParallelConfig(**{kind: dist.get_world_size()}))


def losses(model, batch_of, backend, over_ranks=None):
    model.set_attention_backend(backend)
    if over_ranks is not None:
        split(model, over_ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for step in range(STEPS):
        out = model(**batch_of(step), return_dict=False)[0]
        loss = out.square().mean()
        loss.backward()
        if over_ranks is not None:  # each rank has the gradients of its rows
            for parameter in model.parameters():
                parameter.grad = summed(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        found.append((loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}))
        optimizer.step()
        optimizer.zero_grad()
    return found


MODELS = {"wan": (wan, video, "ring_degree"), "qwen_image": (qwen_image, image, "ulysses_degree")}


def check_models(names, over_ranks=False):
    for model_of, batch_of, kind in map(MODELS.get, names):
        found = []
        for backend in ("native", "tangram"):
            torch.manual_seed(0)
            ranks = kind if over_ranks and backend == "tangram" else None
            found.append(losses(model_of().train(), batch_of, backend, ranks))
        for (loss, gradients), (wanted_loss, wanted) in zip(*reversed(found), strict=True):
            torch.testing.assert_close(loss, wanted_loss, rtol=1e-5, atol=1e-6)
            assert len(wanted) > 10
            for name, gradient in wanted.items():
                torch.testing.assert_close(
                    gradients[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}"
                )


def check_masks():
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 6, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[0, 5:] = padding[1, 3:5] = False
    some = torch.rand(2, 4, 6, 9) < 0.5
    some[..., 0] = True
    masks = [padding, padding[:, None, None], some[:1, :1], some[:, :1], some[0, 0], some, None]
    for given in [{"attn_mask": mask} for mask in masks] + [{"is_causal": True}, {"scale": 0.3}]:
        out = []
        if given.get("attn_mask") is some:  # a mask for each head, of keys too
            k, v = (x.repeat_interleave(2, 2) for x in (k, v))
        for backend in ("native", "tangram"):
            with attention_backend(backend):
                out.append(dispatch_attention_fn(q, k, v, enable_gqa=True, **given))
        torch.testing.assert_close(*out, rtol=1e-4, atol=1e-5)
    padding[0, :] = True  # in place: made anew
    with attention_backend("tangram"):
        ours = dispatch_attention_fn(q, k, v, padding, enable_gqa=True)
        _, lse = dispatch_attention_fn(q, k, v, enable_gqa=True, attention_kwargs={"return_lse": True})
    with attention_backend("native"):
        torch.testing.assert_close(ours, dispatch_attention_fn(q, k, v, padding, enable_gqa=True), rtol=1e-4, atol=1e-5)
    scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / 4
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=1e-4, atol=1e-5)


def check_refusals():
    q = torch.randn(1, 4, 2, 16)
    mask = torch.zeros(1, 4)

    def refused(message, *args, **kwargs):
        with attention_backend("tangram"):
            try:
                dispatch_attention_fn(q, *args, **kwargs)
            except tangram.InvalidArgument as error:
                assert message in str(error), error
            else:
                raise AssertionError(f"not refused: {message}")

    refused("attn_mask must be bool", q, q, mask)
    refused("attn_mask must be [batch, keys], or broadcast", q, q, torch.ones(1, 3, dtype=torch.bool))
    refused("is_causal must be False beside attn_mask", q, q, torch.ones(1, 4, dtype=torch.bool), is_causal=True)
    refused("dropout_p must be 0 (got 0.1)", q, q, dropout_p=0.1)
    refused("enable_gqa must be True", q[:, :, :1], q[:, :, :1])
    refused("softcap is not supported", q, q, attention_kwargs={"softcap": 3.0})


def main():
    names = sys.argv[1:] or list(MODELS)
    register()
    register()
    if "RANK" not in os.environ:
        check_masks()
        check_refusals()
        check_models(names)
        return
    dist.init_process_group("gloo")
    check_models(names, over_ranks=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
