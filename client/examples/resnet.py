#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a ResNet on a folder of pictures, one sub-folder a class, and says how fast and how long it waited for data.

    client/examples/resnet.py TRAIN [--val VAL] [--epochs 3] [--batch 256] [--model resnet50] [--compile]
    torchrun --nproc-per-node 8 client/examples/resnet.py TRAIN ...

Needs torch and the loaderd package; a small ResNet of its own stands in where torchvision is missing (--model small).
"""
import argparse
import os
import time

import loaderd
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return functional.relu(self.second(functional.relu(self.first(x))) + self.skip(x))


def small_resnet(classes):
    widths = [32, 64, 128, 256]
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    blocks = [Block(a, b, 2) for a, b in zip([32] + widths, widths)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def make_model(name, classes):
    if name == "small":
        return small_resnet(classes)
    try:
        from torchvision import models
    except ImportError:
        print("torchvision is not installed: training the small ResNet")
        return small_resnet(classes)
    return getattr(models, name)(num_classes=classes)


def count_classes(folder):
    if not os.path.isdir(folder):
        raise SystemExit(f"{folder} is no folder: give --classes")
    return sum(entry.is_dir() and not entry.name.startswith(".") for entry in os.scandir(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="folder with one sub-folder a class, or a pipeline of the running service")
    parser.add_argument("--val", help="the same, to evaluate on")
    parser.add_argument("--model", default="resnet50", help="of torchvision.models, or 'small'")
    parser.add_argument("--batch", type=int, default=256, help="pictures a step and rank")
    parser.add_argument("--classes", type=int, help="how many (default: sub-folders of TRAIN)")
    parser.add_argument("--image", type=int, default=224, help="side of the pictures")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate for 256 pictures a step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, help="threads of a private daemon")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()

    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    device = torch.device(options.device)
    if distributed:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    first = not distributed or torch.distributed.get_rank() == 0

    common = {"batch_size": options.batch, "image": options.image, "normalize": "imagenet", "device": device,
              "keys": {} if options.workers is None else {"workers": options.workers}}
    train = loaderd.Loader(options.train, shuffle=True, augment="random-resized-crop,flip", **common)
    val = loaderd.Loader(options.val, augment="center-crop", **common) if options.val else None

    model = make_model(options.model, options.classes or count_classes(options.train))
    model = model.to(device, memory_format=torch.channels_last)
    if distributed:
        model = nn.parallel.DistributedDataParallel(model)
    if options.compile:
        model = torch.compile(model)
    rate = options.rate * options.batch * train.world_size / 256
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-5, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=options.epochs * len(train))

    for epoch in range(options.epochs):
        model.train()
        start, seen, before = time.monotonic(), 0, train.statistics()
        for x, y in train:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            seen += len(y)
        last_loss = float(loss.detach())  # waits for the device
        seconds = time.monotonic() - start
        waited = sum(train.statistics().get(key, 0) - before.get(key, 0) for key in ("wait_ns", "stream_wait_ns")) / 1e9
        line = (f"epoch {epoch}: loss {last_loss:.3f}, {seen * train.world_size / seconds:.0f} samples/s, "
                f"waited for data {waited:.2f} s of {seconds:.2f} s")
        if val is not None:
            line += f", accuracy {100 * accuracy(model, val, device, distributed):.1f} %"
        if first:
            print(line, flush=True)
    train.close()
    if val is not None:
        val.close()
    if distributed:
        torch.distributed.destroy_process_group()


@torch.no_grad()
def accuracy(model, val, device, distributed):
    model.eval()
    right = torch.zeros(2, device=device)
    for x, y in val:
        with torch.autocast(device.type, torch.bfloat16):
            hits = model(x).argmax(1) == y
        valid = val.valid  # repeats that fill the last batch do not count
        right += torch.stack([(hits & valid).sum(), valid.sum()])
    if distributed:
        torch.distributed.all_reduce(right)
    return float(right[0] / right[1])


if __name__ == "__main__":
    main()
