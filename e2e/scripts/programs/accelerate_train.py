"""A classifier of token sequences with accelerate: accumulation, clipping, metrics gathered from all processes.

accelerate launch --num_processes 2 --multi_gpu --mixed_precision bf16 accelerate_train.py
"""

import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, CLASSES, BATCH, LENGTH = 256, 10, 16, 128

accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(
    nn.Embedding(1000, WIDTH),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True), 2),
    nn.Flatten(),
    nn.Linear(WIDTH * LENGTH, CLASSES),
)
data = TensorDataset(torch.randint(1000, (250, LENGTH)), torch.randint(CLASSES, (250,)))  # no whole number of batches
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
model, optimizer, loader, evaluation, schedule = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True), DataLoader(data, batch_size=BATCH), schedule
)

for epoch in range(1, 3):
    model.train()
    total, began, seen = torch.zeros((), device=accelerator.device), time.perf_counter(), 0
    for tokens, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(tokens), labels)
            total += loss.detach()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        seen += labels.numel() * accelerator.num_processes
    mean = accelerator.reduce(total, reduction="mean").item() / len(loader)
    rate = seen / (time.perf_counter() - began)
    model.eval()
    losses, right, count = [], 0, 0
    for tokens, labels in evaluation:
        with torch.no_grad():
            output = model(tokens)
        losses.append(accelerator.gather_for_metrics(F.cross_entropy(output, labels).repeat(labels.numel())))
        guesses, known = accelerator.gather_for_metrics((output.argmax(-1), labels))
        right += (guesses == known).sum().item()
        count += known.numel()
    accelerator.print(
        f"epoch {epoch}: loss {mean:.4f} {rate:.0f} samples/s eval_loss {torch.cat(losses).mean():.4f} "
        f"accuracy {right / count:.4f} of {count}"
    )
accelerator.end_training()
