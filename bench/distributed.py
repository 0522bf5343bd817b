"""What training in several processes costs.

python bench/distributed.py             two processes with gloo, a step of about 6 ms: two minutes
python bench/distributed.py --scaling   steps of torch's DistributedDataParallel on 1, 2 and 4 processes: the numbers in nbs/guides/scaling.ipynb
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WIDTHS = 64, 256, 512, 1024  # of the hidden layers of the networks that are measured
ITEMS, LAYERS = 64, 4
COUNTS = 1, 2, 4  # processes


def network(width):
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def seconds(f, budget=1.0):
    """The times of calls of `f`, for about so many seconds, the first ones left out. All processes make the same number of calls."""
    import torch
    import torch.distributed as dist

    def timed():
        start = time.perf_counter()
        f()
        return time.perf_counter() - start

    n = torch.tensor(max(5, min(300, int(budget / min(timed() for _ in range(3))))))
    dist.broadcast(n, 0)
    for _ in range(max(2, int(n) // 10)):
        f()
    dist.barrier()
    return [timed() for _ in range(int(n))]


def one_rank():
    """What one of the processes does; the first prints the times, in milliseconds."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    n, found = dist.get_world_size(), dict(reduce={}, steps=[])
    ms = lambda times: round(1000 * statistics.quantiles(times, n=10)[0], 3)  # of the quickest tenth: other programs run, too
    if n > 1:
        for size in (1, 10_000, 100_000, 1_000_000, 10_000_000):
            data = torch.zeros(size)
            found["reduce"][4 * size] = ms(seconds(lambda: dist.all_reduce(data)))
    for width in WIDTHS:
        net = network(width)
        wrapped = nn.parallel.DistributedDataParallel(net) if n > 1 else net
        for items in sorted({ITEMS // k for k in (COUNTS if n == 1 else (1, n))}, reverse=True):
            x = torch.randn(items, width)
            opt = torch.optim.SGD(net.parameters(), lr=1e-3)

            def step():
                opt.zero_grad()
                wrapped(x).square().mean().backward()
                opt.step()

            parameters = sum(p.numel() for p in net.parameters())
            found["steps"].append(dict(n=n, parameters=parameters, items=items, ms=ms(seconds(step))))
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def loader(n_batches, width):
    """A loader whose batches are read at once, so that reading costs little beside a step."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        x, y = torch.randn(n_batches * ITEMS, width), torch.randn(n_batches * ITEMS, width)

        def __len__(self):
            return len(self.x)

        def __getitems__(self, numbers):
            return self.x[numbers], self.y[numbers]

    return DataLoader(Rows(), ITEMS, collate_fn=lambda batch: batch)


def fit_rank(width, rounds, n_batches=60, few=10):
    """In each of two processes, by turns: a loop with bare DDP, a fit with `distributed`, and one with few batches; wall and CPU milliseconds."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler

    import cbnb.all as cbnb

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dl = loader(n_batches * dist.get_world_size(), width)
    part = DataLoader(dl.dataset, ITEMS, sampler=DistributedSampler(dl.dataset, shuffle=False), collate_fn=dl.collate_fn)
    net, other = network(width), network(width)
    wrapped, opt = nn.parallel.DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=1e-3)

    def bare():
        for x, y in part:
            opt.zero_grad()
            nn.functional.mse_loss(wrapped(x), y).backward()
            opt.step()

    long, short = (cbnb.DataLoaders(each, device="cpu") for each in (dl, loader(few * dist.get_world_size(), width)))
    learn = cbnb.Learner(long, other, nn.MSELoss(), opt_func=torch.optim.SGD, lr=1e-3)

    def with_learner(dls):
        learn.dls = dls
        with learn.no_logging(), learn.no_bar(), learn.distributed():
            learn.fit(1)

    def timed(f):
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        f()
        return [1000 * spent for spent in (time.perf_counter() - start, time.process_time() - used)]

    found, contestants = [], (bare, lambda: with_learner(long), lambda: with_learner(short))
    for i in range(rounds + 1):
        order = (0, 1, 2) if i % 2 else (2, 1, 0)
        times = {k: timed(contestants[k]) for k in order}
        found.append([times[k] for k in range(3)])
    if dist.get_rank() == 0:
        print(json.dumps(dict(n_batches=n_batches, few=few, rounds=found[1:])))
    dist.destroy_process_group()


def two_processes(width, rounds):
    found = json.loads(in_processes(2, "--fit", "--width", str(width), "--rounds", str(rounds)))
    n, few = found["n_batches"], found["few"]
    print(f"width {width}, {rounds} rounds; ms a batch in a fit of {n} batches; the beginning and the end of a fit, and a further batch")
    print("| two processes | median | quietest tenth | x | half of the rounds | a fit, ms | a batch, ms |\n|---|---|---|---|---|---|---|")
    for what, of in enumerate(("time", "CPU time")):
        bare, ours, short = ([row[who][what] for row in found["rounds"]] for who in (0, 1, 2))
        low, middle, high = statistics.quantiles([b / a for a, b in zip(bare, ours)], n=4)
        quiet = [statistics.quantiles(each, n=10)[0] for each in (bare, ours)]
        batch = statistics.median((all_of - some) / (n - few) for all_of, some in zip(ours, short))
        fit = statistics.median(some - few * (all_of - some) / (n - few) for all_of, some in zip(ours, short))
        print(f"| bare DDP, {of} | {statistics.median(bare) / n:.2f} | {quiet[0] / n:.2f} | | | | |")
        print(
            f"| `learn.distributed()`, {of} | {statistics.median(ours) / n:.2f} | {quiet[1] / n:.2f} (x {quiet[1] / quiet[0]:.2f}) "
            f"| {middle:.2f} | {low:.2f} to {high:.2f} | {fit:.1f} | {batch:.2f} |"
        )


def one_process():
    """Modules and handlers that a fit alone has of all this: none."""
    code = (
        "import sys; from cbnb.toy import line_learner; learn = line_learner(); learn.fit(1);"
        "print([name for name in ('accelerate', 'cloudpickle') if name in sys.modules],"
        "[cb for cb in learn.cbs if 'distributed' in type(cb).__module__])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    print(f"\none process: modules of the extra and callbacks for several: {said}")


def in_processes(n, *arguments):
    """Start this file in `n` processes, as torchrun would; what the first one printed."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # the operating system chooses a free port
    shared = dict(WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
    shared |= dict(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", OMP_NUM_THREADS="1")
    command = [sys.executable, __file__, *arguments]
    started = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in range(n)
    ]
    said = [process.communicate()[0] for process in started]
    if failed := [r for r, process in enumerate(started) if process.returncode]:
        sys.exit(f"process {failed[0]} failed")
    return said[0]


def best(rounds):
    """For each number its lowest value over the rounds: other programs can only make it longer."""
    first = rounds[0]
    if isinstance(first, dict):
        return {key: best([found[key] for found in rounds]) for key in first}
    if isinstance(first, list):
        return [best(list(each)) for each in zip(*rounds)]
    return min(rounds)


def scaling(rounds):
    found = best([[json.loads(in_processes(n, "--rank")) for n in COUNTS] for _ in range(rounds)])
    print("reduce = {")
    for n, part in zip(COUNTS, found):
        if part["reduce"]:
            print(f"    {n}: {part['reduce']},")
    print("}\nsteps = [")
    for part in found:
        for row in part["steps"]:
            print(f"    ({', '.join(str(value) for value in row.values())}),")
    print("]")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--scaling", action="store_true", help="steps of torch alone")
    args.add_argument("--rounds", type=int, help="default: 60, and 3 with --scaling")
    args.add_argument("--width", type=int, default=448, help="of the layers; 448: a step of about 6 ms")
    args.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args.add_argument("--fit", action="store_true", help=argparse.SUPPRESS)
    found = args.parse_args()
    if found.rank:
        one_rank()
    elif found.fit:
        fit_rank(found.width, found.rounds)
    elif found.scaling:
        scaling(found.rounds or 3)
    else:
        two_processes(found.width, found.rounds or 60)
        one_process()


if __name__ == "__main__":
    main()
