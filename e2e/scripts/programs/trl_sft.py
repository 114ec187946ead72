"""Supervised fine-tuning of a tiny Llama with a LoRA adapter, by TRL and PEFT; nothing is downloaded.

python trl_sft.py
"""

import random
import tempfile

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *(f"word{i}" for i in range(2000))]

words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
numbers = random.Random(0)
texts = [" ".join(numbers.choice(WORDS[3:]) for _ in range(numbers.randrange(200, 1000))) for _ in range(64)]
data = Dataset.from_dict({"text": texts})
model = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=len(WORDS),
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        use_cache=False,
    )
)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=4,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        max_length=1024,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        bf16=True,
    ),
    train_dataset=data,
    eval_dataset=data.select(range(16)),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
trainer.model.print_trainable_parameters()
trainer.train()
