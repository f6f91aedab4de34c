"""Small modules of several kinds, and plain PyTorch's loop over them."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.dropout(self.down(functional.gelu(self.up(x))))


class Language(nn.Module):
    """A language model with a tied head."""

    def __init__(self, layers=3, width=32, vocabulary=64, dropout=0.1, checkpoints=False):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.checkpoints = checkpoints

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Images(nn.Module):
    """Convolutions with batch norms and residuals, a parameter of the module itself, and a head."""

    def __init__(self):
        super().__init__()

        def layer(wide, out):
            return nn.Sequential(nn.Conv2d(wide, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(True))

        self.stem = layer(3, 8)
        self.blocks = nn.ModuleList([layer(8, 8) for _ in range(3)])
        self.shift = nn.Parameter(torch.zeros(8))
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x.mean((2, 3)) + self.shift)
        return functional.cross_entropy(logits, torch.arange(len(images)) % 10)


class Translation(nn.Module):
    """An encoder and a decoder with one embedding, whose first block's bias all others take over."""

    def __init__(self, width=32, vocabulary=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.bias = nn.Embedding(16, width)
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(width, 2, 48, 0.0, batch_first=True) for _ in range(2)])
        self.middle = nn.LayerNorm(width)
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(width, 2, 48, 0.0, batch_first=True) for _ in range(2)])

    def forward(self, tokens):
        memory = self.embed(tokens) + self.bias(torch.arange(tokens.shape[1]))
        for block in self.encoder:
            memory = block(memory)
        memory = self.middle(memory)
        x = self.embed(tokens.flip(1))
        for block in self.decoder:
            x = block(x, memory)
        return functional.cross_entropy((x @ self.embed.weight.t()).flatten(0, 1), tokens.flatten())


class Odd(nn.Module):
    """A language model whose subclasses use their blocks in other ways than one after the other."""

    def __init__(self, width=16, vocabulary=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = self.make_blocks(width)
        self.head = nn.Linear(width, vocabulary)

    def make_blocks(self, width):
        return nn.ModuleList([Block(width) for _ in range(3)])

    def forward(self, tokens):
        logits = self.head(self.through(self.embed(tokens)))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Again(Odd):
    """Blocks are used several times, as in ALBERT or for two inputs of one loss."""

    def through(self, x):
        for block in [*self.blocks, self.blocks[2], *self.blocks]:
            x = block(x)
        return x


class AgainReentrant(Odd):
    """Each use gives gradients of its own."""

    def through(self, x):
        for block in [*self.blocks, *self.blocks]:
            x = checkpoint(block, x, use_reentrant=True)
        return x


class Sometimes(Odd):
    """Blocks are left out by chance, the second one in the first step."""

    def through(self, x):
        for block, chance in zip(self.blocks, torch.rand(3)):
            if chance > 0.5:
                x = block(x)
        return x


class Skipping(Odd):
    """Some batches leave out the first use of the block that is used again."""

    def forward(self, tokens):
        self.is_whole = bool(tokens[0, 0] % 2)  # of the first batch it is odd
        return super().forward(tokens)

    def through(self, x):
        if self.is_whole:
            x = self.blocks[0](x)
        return self.blocks[2](self.blocks[0](self.blocks[1](x)))


class Shifted(nn.Module):
    """A block beside which a parameter has a use that no output tells of."""

    def __init__(self, width):
        super().__init__()
        self.block = Block(width)
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = self.block(x)
        self.kept = self.shift * 2
        return x


class Hidden(Odd):
    """The gradient of the first use of a block comes before its output's, and after the second's."""

    def make_blocks(self, width):
        return nn.ModuleList([Shifted(width), Block(width)])

    def through(self, x):
        x = self.blocks[0](x)
        return self.blocks[0](self.blocks[1](x + self.blocks[0].kept))


class Rows(Odd):
    """Lists that are never called hold what is."""

    def make_blocks(self, width):
        return nn.ModuleList([nn.ModuleList([Block(width)]), nn.ModuleDict({"one": Block(width)})])

    def through(self, x):
        return self.blocks[1]["one"](self.blocks[0][0](x))


class Box:
    def __init__(self, **items):
        vars(self).update(items)


class Boxing(nn.Module):
    """What it returns is in an object, and what a loss needs of it is in no output."""

    def __init__(self, width):
        super().__init__()
        self.block = Block(width)

    def forward(self, box):
        x = self.block(box.inner["x"])
        self.kept = self.block.up(x).square().mean()
        return Box(inner={"x": x})


class Boxes(Odd):
    def make_blocks(self, width):
        return nn.ModuleList([Boxing(width) for _ in range(3)])

    def through(self, x):
        box = Box(inner={"x": x})
        for block in self.blocks:
            box = block(box)
        return box.inner["x"] + sum(block.kept for block in self.blocks)


class Counting(Odd):
    """It has all that a module may change beside its parameters, and parameters that are no floats."""

    def __init__(self):
        super().__init__()
        self.order = nn.Parameter(torch.arange(16).flip(0), requires_grad=False)
        self.calls = 0
        self.lists = {"all": []}
        self.tensor = torch.zeros(())
        self.carried = (torch.zeros(16),)
        self.register_buffer("turns", torch.polar(torch.ones(8), torch.arange(8.0)))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.zeros(()))
        self.is_begun = False

    def through(self, x):
        self.calls += 1
        self.lists["all"].append(self.calls)
        self.tensor += 1
        self.carried = (self.carried[0] + 1,)
        self.seen = self.seen + 1
        if not self.is_begun:
            self.is_begun = True
            self.scale.copy_(x.detach().std())
        if not hasattr(self, "state"):
            self.state = "scaled"
            self.scale.mul_(0.5)
            self.head.register_forward_hook(lambda module, inputs, x: x * 2)
        for block in self.blocks:
            x = block(x)[..., self.order]
        turned = torch.view_as_complex(x.unflatten(-1, (8, 2))) * self.turns
        kept = self.calls + len(self.lists["all"]) + self.tensor + self.carried[0]
        return torch.view_as_real(turned).flatten(-2) * self.seen * self.scale + 0.1 * kept


class Differing(Odd):
    """What a rank has otherwise than the others."""

    def __init__(self, how=None):
        super().__init__()
        self.how = how
        values = torch.zeros(4 if how == "shape" else 3, dtype=torch.bfloat16 if how == "dtype" else None)
        self.extra = nn.Parameter(values, requires_grad=how != "frozen")
        if how == "name":
            self.other = self.extra
            del self.extra

    def through(self, x):
        for block in list(self.blocks)[:: -1 if self.how == "order" else 1]:
            x = block(x)
        return x + (self.other if self.how == "name" else self.extra).float().sum()


class Peeking(Odd):
    """It uses a parameter of a block outside of the block."""

    def through(self, x):
        for block in self.blocks:
            x = block(x)
        return x + self.blocks[1].down.bias


class Turning(Odd):
    """It goes back through a block in its forward."""

    def make_blocks(self, width):
        return nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3)])

    def through(self, x):
        x = self.blocks[0](x)
        y = self.blocks[1](x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return self.blocks[2](y) + slope


def batches(kind, count=10):
    generator = torch.Generator().manual_seed(7)
    if kind is Images:
        return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(count)]
    return [torch.randint(0, 64, (2, 16), generator=generator) for _ in range(count)]


def make(kind, **options):
    torch.manual_seed(3)
    return kind(**options)


def loop_losses(module, optimizer, data, accumulation=1, clip=0.0):
    """Trains the module in torch's usual loop."""
    torch.manual_seed(5)
    losses = []
    for begin in range(0, len(data), accumulation):
        optimizer.zero_grad()
        for batch in data[begin : begin + accumulation]:
            loss = module(batch)
            (loss / accumulation).backward()
            losses.append(loss.item())
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return losses


def plain_losses(module, data, accumulation=1, clip=0.0, lr=1e-3):
    """Trains a copy with torch alone. Returns losses and the trained copy."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
    return loop_losses(module, optimizer, data, accumulation, clip), module


def engine_losses(engine, data, seed=5):
    if seed is not None:
        torch.manual_seed(seed)
    losses = []
    for batch in data:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses
