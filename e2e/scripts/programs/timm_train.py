"""timm's pieces for image training: model, optimizer, schedule, EMA, mixup's soft targets, meters, accuracy.

python timm_train.py [--mixup]
"""

import argparse
import time

import timm
import torch
from timm.data import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV2, NativeScaler, accuracy

parser = argparse.ArgumentParser()
parser.add_argument("--mixup", action="store_true")
options = parser.parse_args()

BATCH, STEPS, CLASSES = 64, 6, 1000

model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES).cuda()
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=10, warmup_t=1, warmup_lr_init=1e-6)
ema, scaler = ModelEmaV2(model, decay=0.999), NativeScaler()
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=CLASSES) if options.mixup else None
criterion = SoftTargetCrossEntropy() if mixup else LabelSmoothingCrossEntropy(smoothing=0.1)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    images, target = torch.zeros(BATCH, 3, 224, 224), torch.randint(CLASSES, (BATCH,))
    return images.cuda(non_blocking=True), target.cuda(non_blocking=True)


losses = AverageMeter()
for step in range(1, STEPS + 1):
    began = time.time()
    images, target = batch()
    if mixup:
        images, target = mixup(images, target)
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(images), target)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    ema.update(model)
    schedule.step_update(step)
    losses.update(loss.item(), images.size(0))
    seconds = time.time() - began
    print(f"Train: {step} Loss: {losses.val:.4f} ({losses.avg:.4f}) {BATCH / seconds:.1f}/s", flush=True)

top1, top5, losses = AverageMeter(), AverageMeter(), AverageMeter()
model.eval()
with torch.no_grad():
    for _ in range(2):
        images, target = batch()
        output = model(images)
        losses.update(torch.nn.functional.cross_entropy(output, target).item(), BATCH)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        top1.update(acc1.item(), BATCH)
        top5.update(acc5.item(), BATCH)
print(f"Test: Loss: {losses.avg:.4f} Acc@1: {top1.avg:.3f} Acc@5: {top5.avg:.3f}")
