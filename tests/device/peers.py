#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a PyTorch user would write, measured: samples a second into device memory.

    peers.py memmap      --path FILE    float32 3x224x224 records, numpy.memmap
    peers.py pil         --path FOLDER  pictures by PIL, RandomResizedCrop(224), flip, to_tensor, normalize
    peers.py torchvision --path FOLDER  pictures by torchvision.io, v2 transforms on u8, normalised on the device

Each batch is pinned by the loader, copied with non_blocking=True and read once by the device.
"""
import argparse
import os
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Memmap(Dataset):
    def __init__(self, path):
        self.path, self.data = path, None
        self.count = os.path.getsize(path) // (3 * 224 * 224 * 4)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.data is None:
            self.data = np.memmap(self.path, dtype=np.float32, mode="r", shape=(self.count, 3, 224, 224))
        return torch.from_numpy(np.array(self.data[i]))


class Pictures(Dataset):
    def __init__(self, path, torchvision_io):
        classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        self.samples = [(os.path.join(path, c, f), i) for i, c in enumerate(classes)
                        for f in sorted(os.listdir(os.path.join(path, c)))]
        self.torchvision_io = torchvision_io
        self.transform = None

    def __len__(self):
        return len(self.samples)

    def make_transform(self):
        from torchvision import transforms
        from torchvision.transforms import v2
        if self.torchvision_io:
            return v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])
        return transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
                                   transforms.ToTensor(),
                                   transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])

    def __getitem__(self, i):
        if self.transform is None:
            self.transform = self.make_transform()
        path, label = self.samples[i]
        if self.torchvision_io:
            from torchvision.io import ImageReadMode, decode_jpeg, read_file
            return self.transform(decode_jpeg(read_file(path), mode=ImageReadMode.RGB)), label
        from PIL import Image
        with open(path, "rb") as f:
            return self.transform(Image.open(f).convert("RGB")), label


def batches(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("loader", choices=["memmap", "pil", "torchvision"])
    parser.add_argument("--path", required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Memmap(arguments.path) if arguments.loader == "memmap" else Pictures(arguments.path,
                                                                                  arguments.loader == "torchvision")
    loader = DataLoader(dataset, batch_size=arguments.batch, shuffle=True, drop_last=True, num_workers=arguments.workers,
                        pin_memory=device.type == "cuda", persistent_workers=True)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)
    samples, copied, start, sink = 0, 0, None, torch.zeros((), device=device)
    began = time.monotonic()
    for batch in batches(loader):
        data = batch[0] if isinstance(batch, (list, tuple)) else batch
        on_device = data.to(device, non_blocking=True)
        if on_device.dtype == torch.uint8:
            on_device = on_device.float().div_(255).sub_(mean).div_(deviation)
        sink = sink + on_device.view(-1)[0]
        now = time.monotonic()
        if start is None:  # the workers have started and filled their queues
            if now - began > min(4.0, arguments.seconds / 2):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.monotonic()
            continue
        samples += len(data)
        copied += data.numel() * data.element_size()
        if now - start >= arguments.seconds:
            break
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.monotonic() - start
    print(f"torch {arguments.loader} batch {arguments.batch} workers {arguments.workers}: {samples / seconds:.1f} samples/s, "
          f"{copied / seconds / 1e9:.2f} GB/s ({device.type})", flush=True)
    os._exit(0)  # the workers are busy with batches that nobody wants


if __name__ == "__main__":
    main()
