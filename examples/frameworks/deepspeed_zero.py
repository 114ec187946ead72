"""A small GPT trained with DeepSpeed's ZeRO; saved and loaded again where --checkpoint DIR is given.

torchrun --nproc-per-node 2 deepspeed_zero.py --stage 3
"""

import argparse
import os

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1, choices=[0, 1, 2, 3])
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint", help="a directory: save there after the last step, load, and train one step more")
arguments = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
configuration = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": arguments.accumulate,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": True}},  # not fused: that compiles CUDA code
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
    "zero_optimization": {"stage": arguments.stage},
    "steps_per_print": 1,
}
with deepspeed.zero.Init(config_dict_or_path=configuration, enabled=arguments.stage == 3):
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=4, n_embd=256, n_head=4, n_positions=256, vocab_size=8192, bos_token_id=0, eos_token_id=0)
    )
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration)


def train_step() -> float:
    for _ in range(arguments.accumulate):
        tokens = torch.randint(0, 8192, (4, 256), device=engine.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
    return loss.item()


for _ in range(arguments.steps):
    loss = train_step()
    if engine.global_rank == 0:
        print(f"step {engine.global_steps} loss {loss:.3f} norm {float(engine.get_global_grad_norm()):.3f}")
if arguments.checkpoint:
    engine.save_checkpoint(arguments.checkpoint, tag="last", client_state={"seen": arguments.steps})
    _, state = engine.load_checkpoint(arguments.checkpoint, tag="last")
    assert state["seen"] == arguments.steps
    train_step()
    if engine.global_rank == 0:
        print(f"went on from the checkpoint: step {engine.global_steps}")
torch.distributed.destroy_process_group()
