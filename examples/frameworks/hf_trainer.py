"""Hugging Face's Trainer on a small Llama, sharded by accelerate's FSDP; checkpoints are saved and one is resumed from.

torchrun --nproc-per-node 2 hf_trainer.py --output DIR
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--output", help="a directory for checkpoints: one in the middle, from which training goes on")
arguments = parser.parse_args()


class Random(Dataset):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 8192, (256,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def train(steps: int, resume: bool) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            vocab_size=8192,
            use_cache=False,
        )
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.output or tempfile.gettempdir(),
            max_steps=steps,
            per_device_train_batch_size=4,
            bf16=True,
            logging_steps=1,
            save_strategy="steps" if arguments.output else "no",
            save_steps=max(1, arguments.steps // 2),
            report_to=[],
            dataloader_num_workers=0,
            fsdp=True,
            fsdp_config={
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
                "state_dict_type": "SHARDED_STATE_DICT",
            },
        ),
        train_dataset=Random(),
    )
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        print(f"trained to step {trainer.state.global_step}")


if arguments.output:
    train(arguments.steps // 2, resume=False)
train(arguments.steps, resume=bool(arguments.output))
torch.distributed.destroy_process_group()
