"""Fine-tuning a classifier of texts with Hugging Face's Trainer."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import solera as so


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        tokens = torch.cat([torch.tensor([row % 2]), torch.arange(2, 8)])
        return {"input_ids": tokens, "attention_mask": torch.ones(7), "labels": row % 2}


def init():
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_labels=2
    )
    return BertForSequenceClassification(config)


def trainer(model, dataset, context):
    args = TrainingArguments(
        output_dir="/tmp/texts",
        num_train_epochs=2,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
    )
    return Trainer(model=model, args=args, train_dataset=dataset)


fed = so.simulate(Texts(), clients=4, test=0.25, seed=0)
learner = so.FedTorch(init, **so.learn.adapters.hugging_face(trainer), rounds=2).fit(fed)
print("loss", learner.evaluate(fed)["loss"])
