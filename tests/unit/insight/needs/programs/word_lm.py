import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--emsize", type=int, default=650)
parser.add_argument("--nhid", type=int, default=650)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--ntokens", type=int, default=33278)
parser.add_argument("--batch_size", type=int, default=20)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--cuda", action="store_true")
args = parser.parse_args()
device = torch.device("cuda" if args.cuda else "cpu")


class RNNModel(nn.Module):
    def __init__(self, kind, ntoken, ninp, nhid, nlayers, tied=False):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = getattr(nn, kind)(ninp, nhid, nlayers, dropout=0.5)
        self.decoder = nn.Linear(nhid, ntoken)
        if tied:
            self.decoder.weight = self.encoder.weight


model = RNNModel(
    "LSTM", args.ntokens, args.emsize, args.nhid, args.nlayers, tied=True
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=20)
for epoch in range(1, args.epochs + 1):
    loss = model(None)
    loss.backward()
    optimizer.step()
