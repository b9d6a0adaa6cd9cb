"""A convolutional network on pictures by NVFlare's client API, as its hello-pt does: not run."""

import nvflare.client as flare
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

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


def main():
    net = Net()
    trainloader = torch.utils.data.DataLoader(trainset, batch_size=16, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    flare.init()
    while flare.is_running():
        input_model = flare.receive()
        net.load_state_dict(input_model.params)
        steps = 2 * len(trainloader)
        for _ in range(2):
            for data in trainloader:
                inputs, labels = data
                optimizer.zero_grad()
                outputs = net(inputs)
                loss = criterion(outputs, labels)
                loss.backward()
                optimizer.step()
        output_model = flare.FLModel(
            params=net.cpu().state_dict(),
            metrics={"loss": loss.item()},
            meta={"NUM_STEPS_CURRENT_ROUND": steps},
        )
        flare.send(output_model)


def job():
    recipe = FedAvgRecipe(
        name="pictures",
        min_clients=5,
        num_rounds=5,
        initial_model=Net(),
        train_script="cnn_nvflare.py",
    )
    run = recipe.execute(SimEnv(num_clients=5))
    print(run.get_result())


if __name__ == "__main__":
    main()
