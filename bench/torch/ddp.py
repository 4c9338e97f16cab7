#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The models and steps of step.cc with Torch's DistributedDataParallel over Gloo; to be started by bench/torch/run.

Every rank is a process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment. Rank 0 prints an object
of JSON.
"""
import argparse
import datetime
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn


def convolution(into, out, size, stride):
    return nn.Conv2d(into, out, size, stride, size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.body = nn.Sequential(convolution(into, out, 3, stride), nn.BatchNorm2d(out), nn.ReLU(),
                                  convolution(out, out, 3, 1), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(convolution(into, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def mlp():
    return nn.Sequential(nn.Linear(784, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(),
                         nn.Linear(1536, 1024), nn.ReLU(), nn.Linear(1024, 10))


def resnet():
    widths = [64, 64, 128, 256, 512]
    blocks = [block for into, out in zip(widths, widths[1:])
              for block in (Block(into, out, 1 if into == out else 2), Block(out, out, 1))]
    return nn.Sequential(convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def transformer():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0)
    return nn.Sequential(nn.Embedding(1000, 512), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
                         nn.Linear(512, 1000), nn.Flatten(0, 1))


def make_task(name, ranks):
    """The model, and inputs and targets of all ranks."""
    torch.manual_seed(1)
    if name == "mlp":
        return mlp(), torch.randn(ranks, 64, 784), torch.randint(10, (ranks, 64))
    if name == "resnet":
        return resnet(), torch.randn(ranks, 4, 3, 64, 64), torch.randint(10, (ranks, 4))
    return transformer(), torch.randint(1000, (ranks, 64, 2)), torch.randint(1000, (ranks, 128))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "resnet", "transformer"], default="mlp")
    parser.add_argument("--mode", choices=["none", "barrier", "ddp"], default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--write-initial", metavar="FILE", help="gets parameters, inputs and targets, for step.cc")
    parser.add_argument("--losses", action="store_true", help="print the loss of each step")
    options = parser.parse_args()

    if options.threads > 0:
        torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, inputs, targets = make_task(options.model, ranks)
    parameters = list(model.parameters())
    if options.write_initial and rank == 0:
        everything = torch.cat([t.detach().flatten().float() for t in (*parameters, inputs, targets)])
        torch.from_file(options.write_initial, shared=True, size=everything.numel()).copy_(everything)
    data, target = inputs[rank], targets[rank]
    if options.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    losses = []

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        if options.mode == "barrier":
            dist.barrier()
        optimizer.step()
        if options.losses:
            losses.append(loss.item())

    for _ in range(options.warmup):
        step()
    dist.barrier()
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        report = {"program": "ddp", "torch": torch.__version__, "backend": "gloo", "model": options.model,
                  "mode": options.mode, "device": "cpu", "ranks": ranks, "threads": torch.get_num_threads(),
                  "parameters": sum(p.numel() for p in parameters), "steps": options.steps,
                  "median_ms": statistics.median_high(times)}
        print(json.dumps({**report, "losses": losses} if options.losses else report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
