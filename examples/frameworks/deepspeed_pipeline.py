"""A small transformer on DeepSpeed's pipeline engine (1F1B).

torchrun --nproc-per-node 2 deepspeed_pipeline.py --stages 2
"""

import argparse
import os

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

VOCABULARY, WIDTH, LENGTH = 8192, 256, 256

parser = argparse.ArgumentParser()
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--micro-batches", type=int, default=4)
parser.add_argument("--recompute", action="store_true", help="keep no activations inside a layer")
arguments = parser.parse_args()


class Block(nn.TransformerEncoderLayer):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=hidden.device, dtype=hidden.dtype)
        return super().forward(hidden, src_mask=mask, is_causal=True)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def batches():
    while True:
        tokens = torch.randint(0, VOCABULARY, (4, LENGTH))
        yield tokens, tokens


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
blocks = [LayerSpec(Block, WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(4)]
model = PipelineModule(
    [LayerSpec(nn.Embedding, VOCABULARY, WIDTH), *blocks, LayerSpec(nn.Linear, WIDTH, VOCABULARY)],
    num_stages=arguments.stages,
    loss_fn=loss_of,
    activation_checkpoint_interval=1 if arguments.recompute else 0,
)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=[p for p in model.parameters() if p.requires_grad],
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": arguments.micro_batches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": True}},
        "zero_optimization": {"stage": 0},
        "steps_per_print": 1,
    },
)
data = batches()
for _ in range(arguments.steps):
    loss = engine.train_batch(data_iter=data)
    if engine.global_rank == 0:
        print(f"step {engine.global_steps} loss {float(loss):.3f}")
torch.distributed.destroy_process_group()
