"""A small transformer sharded with fully_shard (FSDP2): mixed precision, prefetching, a checkpoint of the whole model.

torchrun --nproc-per-node 2 fsdp2.py
"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 8192, 512, 4, 8, 256


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
with torch.device("meta"):
    model = Transformer()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
assert isinstance(model, FSDPModule)
for earlier, later in zip(model.layers, model.layers[1:], strict=False):
    earlier.set_modules_to_forward_prefetch([later])
    later.set_modules_to_backward_prefetch([earlier])
model.to_empty(device=device)
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
assert all(isinstance(p, DTensor) for p in model.parameters())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(1, 5):
    began = time.perf_counter()
    x = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    loss = F.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    seconds = time.perf_counter() - began
    if dist.get_rank() == 0:
        rate = BATCH * LENGTH * dist.get_world_size() / seconds
        print(f"step {step} loss {mean.item():.4f} norm {norm.item():.4f} {rate:.0f} tokens/s", flush=True)
whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if dist.get_rank() == 0:
    print(f"the whole model has {sum(p.numel() for p in whole.values())} parameters")
dist.destroy_process_group()
