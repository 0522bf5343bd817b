"""GRPO: a batch of prompts gives rollouts, which are used for several updates against the policy that made them."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, UpdateStep
from program import Hand, Program, loader, mean

GROUP, INNER, CLIP, KL = 4, 3, 0.2, 0.05
ACTIONS = 5


def loaders():
    x = torch.randn(56, 3, generator=torch.Generator().manual_seed(6))
    return loader(x[:40], shuffle=True), loader(x[40:])


def pretrained():
    """The policy that training starts from, the same in each process."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, ACTIONS))


def reward(x, action):
    return -(action - (x.sum(1) + 2).clamp(0, ACTIONS - 1)).abs()


def rollouts(policy, x):
    with torch.no_grad():
        x = x.repeat_interleave(GROUP, 0)
        log_probs = policy(x).log_softmax(1)
        action = torch.multinomial(log_probs.exp(), 1)[:, 0]
        r = reward(x, action).view(-1, GROUP)
        advantage = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
    return x, action, log_probs.gather(1, action[:, None])[:, 0], advantage


def grpo_loss(policy, reference, x, action, old, advantage):
    log_probs = policy(x).log_softmax(1)
    new = log_probs.gather(1, action[:, None])[:, 0]
    ratio = (new - old).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    with torch.no_grad():
        theirs = reference(x).log_softmax(1)
    kl = F.kl_div(theirs, log_probs, log_target=True, reduction="none").sum(1)
    return (KL * kl - gain).mean()


def expected_reward(policy, x):
    probs = policy(x).softmax(1)
    return sum(probs[:, a] * reward(x, torch.full((len(x),), a)) for a in range(ACTIONS)).mean()


class TestGRPO(Program):
    """The step makes the updates itself. The loss of a batch is that of its last update."""

    def by_hand(self):
        (train, valid), policy = loaders(), pretrained()
        reference = copy.deepcopy(policy)
        opt = torch.optim.AdamW(policy.parameters(), 1e-2)
        hand = Hand(policy)
        for _ in range(self.n_epoch):
            policy.train()
            losses, sizes = [], []
            for (x,) in train:
                batch = rollouts(policy, x)
                for _ in range(INNER):
                    loss = grpo_loss(policy, reference, *batch)
                    opt.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                    opt.step()
                losses.append(loss.item()), sizes.append(len(x))
            policy.eval()
            with torch.no_grad():
                found = [(-expected_reward(policy, x).item(), len(x)) for (x,) in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        policy = pretrained()
        reference = copy.deepcopy(policy)

        class GRPO:
            def __init__(self):
                self.opt = torch.optim.AdamW(policy.parameters(), 1e-2)

            def step(self, x):
                batch = rollouts(policy, x)
                for _ in range(INNER):
                    loss = grpo_loss(policy, reference, *batch)
                    self.opt.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                    self.opt.step()
                return loss

        dls = DataLoaders(*loaders(), device="cpu", n_inp=1)
        evaluate = lambda x: (-expected_reward(policy, x), x)
        return Learner(dls, policy, train_step=UpdateStep(GRPO().step), eval_step=evaluate, path=path)
