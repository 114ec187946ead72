"""Megatron-core: a small GPT with tensor, pipeline and data parallelism, distributed optimizer and gradient clipping.

    torchrun --nproc-per-node 4 megatron_gpt.py --tensor 2 --pipeline 2

The layers are Megatron's local ones: neither Apex nor Transformer Engine is needed.
"""

import argparse
import os
import time

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import silu

parser = argparse.ArgumentParser()
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--pipeline", type=int, default=1)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--ffn", type=int, help="width of the feed-forward part; four times the width unless given")
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--vocabulary", type=int, default=8192)
parser.add_argument("--llama", action="store_true", help="layers as in Llama 2: SwiGLU, RMSNorm, rotary, no biases")
parser.add_argument("--micro-batch", type=int, default=2)
parser.add_argument("--micro-batches", type=int, default=4, help="gradient accumulation: this many to a step")
parser.add_argument("--recompute", action="store_true", help="full activation recomputation")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--checkpoint", help="a directory: save there after the last step and load again")
arguments = parser.parse_args()


def main() -> None:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    parallel_state.initialize_model_parallel(arguments.tensor, arguments.pipeline)
    model_parallel_cuda_manual_seed(1)
    llama = {"gated_linear_unit": True, "activation_func": silu, "normalization": "RMSNorm", "add_bias_linear": False}
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    config = TransformerConfig(
        tensor_model_parallel_size=arguments.tensor,
        pipeline_model_parallel_size=arguments.pipeline,
        num_layers=arguments.layers,
        hidden_size=arguments.width,
        ffn_hidden_size=arguments.ffn or 4 * arguments.width,
        num_attention_heads=arguments.heads,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        gradient_accumulation_fusion=False,  # a kernel of Apex
        **(llama if arguments.llama else {}),
        **(recompute if arguments.recompute else {}),
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization=config.normalization),
        vocab_size=arguments.vocabulary,
        max_sequence_length=arguments.length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope" if arguments.llama else "learned_absolute",
    )
    model = model.cuda().bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True, clip_grad=1.0), [model]
    )
    schedule = get_forward_backward_func()
    positions = torch.arange(arguments.length, device="cuda").expand(arguments.micro_batch, -1)
    mask = torch.ones(1, 1, arguments.length, arguments.length, device="cuda").tril() < 0.5

    def batches():
        while True:
            yield torch.randint(0, arguments.vocabulary, (arguments.micro_batch, arguments.length), device="cuda")

    def forward(data, part):
        tokens = next(data)

        def loss_of(output):
            loss = output.float().mean()
            return loss, {"loss": loss.detach()}

        return part(tokens, positions, mask, labels=tokens), loss_of

    def train_step(data):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = schedule(
            forward_step_func=forward,
            data_iterator=data,
            model=[model],
            num_microbatches=arguments.micro_batches,
            seq_length=arguments.length,
            micro_batch_size=arguments.micro_batch,
            forward_only=False,
        )
        finalize_model_grads([model])
        _, norm, _ = optimizer.step()
        return losses, float(norm)

    data = batches()
    for step in range(1, arguments.steps + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        losses, norm = train_step(data)
        torch.cuda.synchronize()
        if losses and parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_data_parallel_rank() == 0:
            loss = sum(float(entry["loss"]) for entry in losses) / len(losses)
            took_ms = (time.perf_counter() - begin) * 1e3
            print(f"step {step} loss {loss:.3f} norm {norm:.3f} {took_ms:.1f} ms")
    if arguments.checkpoint:
        if rank == 0:
            os.makedirs(arguments.checkpoint, exist_ok=True)
        torch.distributed.barrier()
        dist_checkpointing.save({"model": model.module.sharded_state_dict()}, arguments.checkpoint)
        loaded = dist_checkpointing.load({"model": model.module.sharded_state_dict()}, arguments.checkpoint)
        model.module.load_state_dict(loaded["model"])
        if rank == 0:
            print("loaded the checkpoint")
    print(f"rank {rank}: peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # saving a checkpoint starts processes that import this file
    main()
