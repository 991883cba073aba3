"""Ten epochs of AdamW, with a warm-up, for search and fine-tuning alike."""

from gemkit import Plan, finetune, search
from gemkit.testing import CPU, tiny_data, tiny_net

plan = Plan(epochs=10, batch_size=16, optimizer="adamw", lr=0.01, warmup_epochs=2)
assert [round(plan.lr_at(step, 1), 4) for step in (0, 1, 2)] == [0.005, 0.01, 0.01]
ticket = search("snip", tiny_net(), tiny_data(), density=0.5, plan=plan, runtime=CPU)
trained = finetune(ticket, tiny_net(), tiny_data(), plan=plan, runtime=CPU)
assert trained.info.stage == "finetuned"
