"""Trains models/tiny from random weights on scenes drawn while it runs, and models/tiny3 from tools/upcycle.py's.

With --freeze-image what the image goes through is frozen: the vision encoder, and the text blocks below the experts (or as many as
--frozen-blocks says). So models/tiny3 goes on sharing them with models/tiny. With --pool (tools/make_feature_pool.py) an image's states there are
computed once besides: for machines without a GPU. The learning-rate schedule runs over --seconds of training: a slower
machine needs more of them. A run that was stopped (SIGSTOP) goes on where it was, and one that ended is resumed from its checkpoint
with --init and --done-seconds.
Writes checkpoint.safetensors (the averaged weights, bfloat16, published naming) and log.jsonl into --out.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.batches import SceneBatches  # noqa: E402
from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.feature_pool import PooledBatches  # noqa: E402
from gapless_tools.losses import OUTLINE_CLASSES, Deciding, dense_losses, outline_losses, region_losses, token_losses  # noqa: E402
from gapless_tools.packing import SUFFIX  # noqa: E402
from gapless_tools.path_grammar import path_numbers  # noqa: E402
from gapless_tools.prompts import Shares  # noqa: E402
from gapless_tools.reference_model import FIXED_TENSORS, ReferenceModel, Weights, initial_weights, load_weights  # noqa: E402
from gapless_tools.training_model import TrainingModel, dense_head_weights  # noqa: E402

LOSS_WEIGHTS = {"token": 1.0, "path": 1.0, "hole": 0.4, "begin": 0.3, "coord": 0.6, "size": 0.5, "balance": 0.01}
LOSS_WEIGHTS |= {"hollow": 0.4, "turn": 0.4}  # of outlines, with their kind
LOSS_WEIGHTS |= {"kind": 0.3, "colour": 0.2, "text": 0.25, "sides": 0.5}  # of the dense heads
INPUT_JITTER = 0.004  # of coordinates and, relative, of sizes that are fed back
OUTLINE_HEAD_LR = 5.0  # times --lr


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init", type=Path, help="a checkpoint or a model's folder to go on from; the optimizer starts afresh")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--seconds", type=float, default=900, help="length of the training; the schedule ends with it")
    parser.add_argument("--done-seconds", type=float, default=0, help="of them, those that --init was trained for")
    parser.add_argument("--max-steps", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tiled-batch", type=int, default=24)
    parser.add_argument("--tiled-every", type=int, default=5)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--warmup-steps", type=int, default=500)
    parser.add_argument("--checkpoint-seconds", type=float, default=120)
    parser.add_argument("--average-seconds", type=float, default=60, help="over which weights are averaged")
    parser.add_argument("--freeze-image", action="store_true", help="what it goes through: vision, and blocks below the experts")
    parser.add_argument("--frozen-blocks", type=int, help="with --freeze-image: so many text blocks (default: those below the experts)")
    parser.add_argument("--pool", type=Path, help="vision features; means --freeze-image")
    parser.add_argument("--freeze-inputs", action="store_true", help="with --freeze-image: embeddings too, so that no gradient goes there")
    parser.add_argument("--head-lr", type=float, default=1, help="times --lr: of the region heads")
    parser.add_argument("--lower-lr", type=float, default=1, help="times --lr: of the text blocks below the experts")
    parser.add_argument("--slots", type=int, default=SUFFIX, help="tokens of tasks about an image")
    parser.add_argument("--segment-share", type=float, default=Shares.segment, help="of the tasks")
    parser.add_argument("--hollow-share", type=float, default=Shares.hollow, help="of the outlines: of a hollow shape if there is one")
    parser.add_argument("--upright-paths", action="store_true", help="one path for each kind: far easier to learn")
    parser.add_argument("--reason-share", type=float, default=Shares.reasoned, help="of the tasks")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args(arguments)


def read_weights(path: Path) -> Weights:
    return load_weights(path) if path.is_dir() else load_weights(path.parent, path.name)


class TrainingClock:
    """Seconds of training. While the process is stopped (SIGSTOP) none pass."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.previous = seconds, time.time()
        signal.signal(signal.SIGCONT, lambda *_: self.restart())

    def restart(self) -> None:
        self.previous = time.time()

    def advance(self) -> float:
        """Seconds since the last call, or since what stopped the process in between."""
        now = time.time()
        taken, self.previous = now - self.previous, now
        self.seconds += taken
        return taken


class Training:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.config = load_config(args.model)
        weights = read_weights(args.init) if args.init else initial_weights(self.config, args.seed)
        self.weights = {k: v.to(self.device, torch.float32) for k, v in weights.items()}
        heads = {
            "vision": dense_head_weights(self.config.vision.enc_dim, args.seed + 1),
            "text": dense_head_weights(self.config.text.dim, args.seed + 2),
        }
        self.freezes = args.freeze_image or args.pool is not None
        if self.freezes:
            heads = {}  # what they are for is frozen
        self.heads = {k: {n: t.to(self.device) for n, t in head.items()} for k, head in heads.items()}
        trained = {k: v for k, v in self.weights.items() if k not in FIXED_TENSORS}
        if self.freezes:
            below_experts = self.config.text.moe.start_layer
            self.frozen_blocks = below_experts if args.frozen_blocks is None else args.frozen_blocks
            frozen = ("model.vision.", *(f"model.text.blocks.{i}." for i in range(self.frozen_blocks)))
            if args.freeze_inputs:
                frozen += ("model.text.wte", "model.region.coord_encoder.", "model.region.size_encoder.")
            trained = {k: v for k, v in trained.items() if not k.startswith(frozen)}
        trained |= {f"{k}.{n}": t for k, head in self.heads.items() for n, t in head.items()}
        self.outline_heads = self.make_outline_heads()
        trained |= {f"outline.{k}.{n}": t for k, head in self.outline_heads.items() for n, t in head.items()}
        for tensor in trained.values():
            tensor.requires_grad_()
        self.trained = list(trained.values())
        self.optimizer = torch.optim.AdamW(self.groups_of(trained), lr=args.lr, betas=(0.9, 0.98), fused=True)
        tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
        self.path_numbers = path_numbers(tokenizer, self.config.text.vocab_size).to(self.device)
        ends = (tokenizer.token_to_id(text) for text in "MZ")
        self.deciding = Deciding(*(-1 if token is None else token for token in ends))
        self.average = {k: v.detach().clone() for k, v in self.weights.items()}
        self.model = TrainingModel(self.config, self.weights, self.heads, compiled=not args.no_compile)
        args.out.mkdir(parents=True, exist_ok=True)
        self.below: dict[int, list[torch.Tensor]] = {}  # of the pool's images
        self.log = (args.out / "log.jsonl").open("a")

    def make_outline_heads(self) -> dict[tuple[int, str], Weights]:
        """By what each reads: the output of a block, from the last one below the experts on but the last, where the tasks are;
        and of the first of these where the image is."""
        text = self.config.text
        if not self.config.outlines or not self.freezes:
            return {}
        layers = range(max(self.frozen_blocks, text.moe.start_layer - 1), text.n_layers - 1)
        places = [(layers[0], "patches"), *((layer, "tasks") for layer in layers)] if layers else []
        return {
            place: {
                "weight": torch.zeros(OUTLINE_CLASSES, text.dim, device=self.device),
                "bias": torch.zeros(OUTLINE_CLASSES, device=self.device),
            }
            for place in places
        }

    def groups_of(self, trained: Weights) -> list[dict]:
        """What the optimizer takes, by learning rate and decay."""
        lower = tuple(f"model.text.blocks.{i}." for i in range(self.config.text.moe.start_layer if self.config.text.moe else 0))
        groups: dict[tuple[float, float], list[torch.Tensor]] = {}
        for name, tensor in trained.items():
            is_matrix = tensor.dim() == 2 or tensor.dim() == 3 and ".mlp." in name
            scale = 1.0
            if name.startswith("model.region.") and "_decoder." in name:
                scale = self.args.head_lr
            elif name.startswith(lower):
                scale = self.args.lower_lr
            elif name.startswith("outline."):
                scale = OUTLINE_HEAD_LR
            groups.setdefault((scale, self.args.weight_decay if is_matrix else 0.0), []).append(tensor)
        return [{"params": found, "weight_decay": decay, "scale": scale} for (scale, decay), found in groups.items()]

    def learning_rate(self, step: int, progress: float) -> float:
        warmup = min(1.0, (step + 1) / self.args.warmup_steps)
        return self.args.lr * warmup * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))

    def to_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        moved = {k: v if k == "tilings" else v.to(self.device, non_blocking=True) for k, v in batch.items()}
        moved["coord_in"] = moved["coord_in"] + INPUT_JITTER * torch.randn_like(moved["coord_in"])
        moved["size_in"] = moved["size_in"] * (1 + 8 * INPUT_JITTER * torch.randn_like(moved["size_in"]))
        return moved

    @torch.no_grad()
    def states_below(self, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """What the frozen blocks make of the batch's images."""
        if not self.args.pool:
            features = self.model.image_features(batch["crops"], batch["tilings"].tolist())
            return self.model.prefix_below(*features, self.frozen_blocks)
        found = []
        for image, whole, local in zip(batch["images"].tolist(), batch["whole"], batch["local"]):
            if image not in self.below:
                self.below[image] = self.model.prefix_below(whole[None], local[None], self.frozen_blocks)
            found.append(self.below[image])
        return [torch.cat(states) for states in zip(*found)]

    def losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            if self.freezes:
                out = {"hidden": self.model.above(batch, self.states_below(batch))}
            else:
                out = self.model.forward(batch)
            losses = token_losses(self.weights, out["hidden"], batch, self.path_numbers, self.deciding)
            slots = batch["tokens"].shape[1] // 6 * batch["tokens"].shape[0]
            losses |= region_losses(self.weights, out["hidden"], batch, slots)
            losses |= self.outline_losses(batch)
            if self.model.uneven:
                losses["balance"] = torch.stack(list(self.model.uneven.values())).mean()
            for name in self.heads:
                losses |= dense_losses(out["dense_" + name], batch, name)
        return losses

    def outline_losses(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        losses, prefix = {}, self.config.prefix_length
        for (layer, where), head in self.outline_heads.items():
            states = self.model.states[layer]
            if where == "tasks":
                losses |= outline_losses(head, states[:, prefix:], batch["outlined"], f"tasks{layer}")
            elif "patches" in batch:
                losses |= outline_losses(head, states[:, 1:prefix], batch["patches"], f"patches{layer}")
        return losses

    def step(self, batch: dict[str, torch.Tensor], lr: float, seconds: float) -> dict[str, torch.Tensor]:
        losses = self.losses(batch)
        total = sum(LOSS_WEIGHTS[name.split("_")[-1]] * value for name, value in losses.items())
        total.backward()
        losses["grad_norm"] = torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            share = min(0.5, max(0.0005, seconds / self.args.average_seconds))
            torch._foreach_lerp_(list(self.average.values()), [w.detach() for w in self.weights.values()], share)
        return {name: value.detach() for name, value in losses.items()}

    def save(self, name: str = "checkpoint.safetensors") -> None:
        path = self.args.out / name
        ReferenceModel(self.config, self.average).save(path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    def run(self) -> None:
        args = self.args
        tokenizer = str(args.model / "tokenizer.json")
        shares = Shares(args.segment_share, args.reason_share, args.upright_paths, args.hollow_share)
        if args.pool:
            dataset = PooledBatches(self.config, tokenizer, args.pool, args.seed, args.batch, args.slots, shares)
        else:
            tiled = (args.tiled_batch, args.tiled_every)
            dense = not self.freezes
            dataset = SceneBatches(self.config, tokenizer, args.seed, args.batch, *tiled, args.slots, shares, dense)
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=args.workers,
            prefetch_factor=4 if args.workers else None,
            pin_memory=self.device == "cuda",
        )
        last_log, clock, last_save = time.time(), TrainingClock(args.done_seconds), args.done_seconds
        waited, images, window_images = 0.0, 0, 0
        batches = iter(loader)
        sums: dict[str, torch.Tensor] = {}
        window = 0
        for step in range(args.max_steps):
            fetch = time.time()
            batch = next(batches)
            waited += time.time() - fetch
            taken = clock.advance()
            if clock.seconds >= args.seconds:
                break
            lr = self.learning_rate(step, clock.seconds / args.seconds)
            losses = self.step(self.to_device(batch), lr, taken)
            images += batch["tokens"].shape[0]
            window_images += batch["tokens"].shape[0]
            window += 1
            for name, value in losses.items():
                sums[name] = sums.get(name, 0) + value
            if (step + 1) % args.log_every == 0 or step < 3:
                record = {name: round(float(value) / window, 4) for name, value in sums.items()}
                now = time.time()
                record |= {
                    "step": step + 1,
                    "seconds": round(clock.seconds, 1),
                    "images": images,
                    "images_per_second": round(window_images / (now - last_log), 1),
                    "waited": round(waited / (now - last_log), 3),
                    "lr": round(lr, 6),
                }
                print(json.dumps(record), flush=True)
                print(json.dumps(record), file=self.log, flush=True)
                sums, waited, window, window_images, last_log = {}, 0.0, 0, 0, now
            if clock.seconds - last_save > args.checkpoint_seconds:
                self.save()
                last_save = clock.seconds
        self.save()
        print(json.dumps({"done": True, "steps": step, "images": images}), flush=True)


def main() -> None:
    torch.set_float32_matmul_precision("high")
    args = parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    Training(args).run()


if __name__ == "__main__":
    main()
