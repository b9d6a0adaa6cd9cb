"""A convolutional network on pictures, by the apps of Flower, as its quickstart does: not run."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from pictures import trainset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc2(F.relu(self.fc1(x)))


app = ClientApp()
server = ServerApp()


@app.train()
def train(msg, context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition = context.node_config["partition-id"]
    rows = range(partition, len(trainset), context.node_config["num-partitions"])
    shard = torch.utils.data.Subset(trainset, rows)
    trainloader = torch.utils.data.DataLoader(shard, batch_size=16, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        for data in trainloader:
            inputs, labels = data
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(shard)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@server.main()
def main(grid, context):
    net = Net()
    strategy = FedAvg(fraction_evaluate=0.0)
    arrays = ArrayRecord(net.state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=5)
    net.load_state_dict(result.arrays.to_torch_state_dict())
    images, labels = trainset.tensors
    print("accuracy", (net(images).argmax(1) == labels).float().mean().item())
