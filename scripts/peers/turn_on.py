#!/usr/bin/env python3
"""Runs what `vramlab list` says to write in PyTorch, and checks that it does to the results what is promised.

Every optimization's `turn_on` line is run as it stands on a small transformer, and on a small convolution net
where it is about activations: a few steps of AdamW with it and without, from the same weights, losses compared
bit for bit where the optimization promises that, within TOLERANCE where it promises a tolerance. Another
training ("different-model") must differ. A line that needs a package which is not there is reported as not
run, one that begins with "no equivalent" has nothing to run.

A line may be several statements, separated by ";", begin with imports and end in a comment. The names in it
decide where it goes:

  with ...:         around forward and loss
  model             else once, before training; "model = ..." and "optimizer = ..." replace what they name
  block, x          in the place of block(x), for every block
  param             once for every parameter, with step_and_free at hand, in the place of optimizer.step()
  frozen            once for every module to freeze
  counted_tokens    in the place of loss.backward(), once for every part of the batch
  loss, optimizer   in the place of loss.backward() and optimizer.step()
  max_norm          before every optimizer.step()
  weight, labels    in the place of the projection onto the classes and its loss
  weight, epsilon   in the place of every layer norm
  channels          in the place of every batch norm and the ReLU after it
  nn.ReLU(...)      in the place of every nn.ReLU
  inputs, outputs   in the place of every convolution whose channels divide by four
  only torch, os    once, before training: settings of torch and of the environment

usage: .peer/bin/python scripts/peers/turn_on.py [--vramlab build/cpu/bin/vramlab] [--json] [NAME...]
Exit code 1 when a line fails or does not keep its promise.
"""
import argparse, ast, contextlib, json, os, subprocess, sys

import torch, torch.nn as nn, torch.nn.functional as F

MAX_NORM = 0.1  # below every norm there is
STEPS, BATCH, LENGTH, WIDTH, HEADS, WORDS, PARTS = 4, 8, 16, 64, 4, 97, 2
# Of a loss, after a few steps: bfloat16 keeps 8 bits, so a loss made of many such values is good to 1 %.
TOLERANCE = 1e-2
# What a line that is run in every step names.
WITHIN_A_STEP = [("block", "x"), ("weight", "labels"), ("counted_tokens",), ("loss", "optimizer"), ("max_norm",)]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o, self.norm1 = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.f1, self.f2, self.norm2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.o(a.transpose(1, 2).reshape(n, t, WIDTH)))
        return self.norm2(x + self.f2(F.gelu(self.f1(x))))


class Transformer(nn.Module):
    """Predicts a label for every token; labels below zero do not count."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, call):
        x = self.embeddings(tokens)
        for block in self.blocks:
            x = call(block, x)
        return x.flatten(0, 1)

    def frozen(self):
        return [self.embeddings]

    @staticmethod
    def batch(generator):
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
        labels = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
        labels[torch.rand(BATCH, LENGTH, generator=generator) < 0.3] = -100
        return tokens, labels


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, images, call):
        x = self.stem(images)
        for block in self.blocks:
            x = call(block, x)
        return x.mean((2, 3))

    def frozen(self):
        return [self.stem]

    @staticmethod
    def batch(generator):
        return torch.randn(BATCH, 3, 16, 16, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


class Norm(nn.Module):
    """A layer norm that calls something else."""

    def __init__(self, norm, call):
        super().__init__()
        self.weight, self.bias, self.epsilon, self.call = norm.weight, norm.bias, norm.eps, call

    def forward(self, x):
        return self.call(dict(x=x, width=WIDTH, weight=self.weight, bias=self.bias, epsilon=self.epsilon))


class Line:
    """A turn_on line: its statements, and the names that say where they go."""

    def __init__(self, text):
        self.text = text
        self.context = text.startswith("with ")
        self.tree = ast.parse(text + "\n  pass" if self.context else text)
        self.imports = [s for s in self.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
        self.rest = [s for s in self.tree.body if s not in self.imports]
        self.names = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}

    def has(self, *names):
        return not self.context and all(name in self.names for name in names)

    def run(self, scope):
        """Runs it; returns the last statement's value when that is an expression."""
        exec(compile(ast.Module(self.imports, []), "<turn_on>", "exec"), scope)
        last = self.rest[-1]
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module(self.rest, []), "<turn_on>", "exec"), scope)
            return None
        exec(compile(ast.Module(self.rest[:-1], []), "<turn_on>", "exec"), scope)
        return eval(compile(ast.Expression(last.value), "<turn_on>", "eval"), scope)

    def around(self, scope):
        """The context managers of a with line."""
        exec(compile(ast.Module(self.imports, []), "<turn_on>", "exec"), scope)
        stack = contextlib.ExitStack()
        for item in self.rest[-1].items:
            stack.enter_context(eval(compile(ast.Expression(item.context_expr), "<turn_on>", "eval"), scope))
        return stack


def replace_modules(module, kind, make):
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, make(child))
        else:
            replace_modules(child, kind, make)


class Training:
    def __init__(self, kind, line):
        torch.manual_seed(0)
        self.line, self.kind = line, kind
        self.model = kind()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scope = dict(torch=torch, nn=nn, F=F, device_type="cpu", model=self.model, optimizer=self.optimizer)
        self.steps_itself = False
        if line:
            self.set_up()

    def set_up(self):
        line, scope = self.line, self.scope
        if line.has("param"):
            self.step_in_backward()
        elif line.has("frozen"):
            for frozen in self.model.frozen():
                line.run(dict(scope, frozen=frozen))
        elif line.has("channels"):
            replace_modules(self.model, nn.BatchNorm2d, lambda norm: line.run(dict(scope, channels=norm.num_features)))
            replace_modules(self.model, nn.ReLU, lambda relu: nn.Identity())
        elif line.has("weight", "epsilon"):
            replace_modules(self.model, nn.LayerNorm, lambda norm: Norm(norm, lambda at: line.run(dict(scope, **at))))
        elif line.has("inputs", "outputs"):
            replace_modules(self.model, nn.Conv2d, self.convolution)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        elif "nn.ReLU" in line.text:
            replace_modules(self.model, nn.ReLU, lambda relu: line.run(dict(scope)))
        elif line.has("model") and not line.has("max_norm"):
            line.run(scope)
            self.model, self.optimizer = scope["model"], scope["optimizer"]
        elif line.names and line.names <= {"torch", "os"} and not line.context:
            line.run(scope)
        elif not (line.context or any(line.has(*names) for names in WITHIN_A_STEP)):
            raise NameError("none of its names says where it goes")

    def convolution(self, before):
        """Another convolution of the same shape, where it can be grouped."""
        inputs, outputs = before.in_channels, before.out_channels
        if inputs % 4 or outputs % 4:
            return before
        shape = dict(inputs=inputs, outputs=outputs, window=before.kernel_size, stride=before.stride)
        return self.line.run(dict(self.scope, padding=before.padding, **shape))

    def step_in_backward(self):
        """An optimizer for every parameter, stepped by what the line registers."""
        self.steps_itself = True
        optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in self.model.parameters()}

        def step_and_free(param):
            optimizers[param].step()
            param.grad = None

        for param in self.model.parameters():
            self.line.run(dict(self.scope, param=param, step_and_free=step_and_free))

    def call(self, block, x):
        if self.line and self.line.has("block", "x"):
            return self.line.run(dict(self.scope, block=block, x=x))
        return block(x)

    def loss(self, inputs, labels):
        model = self.model
        around = self.line.around(self.scope) if self.line and self.line.context else contextlib.nullcontext()
        with around:
            x = model(inputs, self.call)
            if self.line and self.line.has("weight", "labels"):
                head = dict(weight=model.head.weight, bias=model.head.bias, x=x, labels=labels.flatten())
                return self.line.run(dict(self.scope, **head))
            return F.cross_entropy(model.head(x).float(), labels.flatten())

    def step_in_parts(self, inputs, labels):
        """Adds up the gradients of parts of the batch; returns the loss of the whole."""
        total, of_step = 0.0, (labels != -100).sum()
        for part, part_labels in zip(inputs.chunk(PARTS), labels.chunk(PARTS)):
            loss, counted = self.loss(part, part_labels), (part_labels != -100).sum()
            total += (loss * counted / of_step).item()
            self.line.run(dict(self.scope, loss=loss, counted_tokens=counted, tokens_of_the_step=of_step))
        self.optimizer.step()
        return total

    def step(self, inputs, labels):
        """Returns the loss before it."""
        line = self.line
        if line and line.has("counted_tokens"):
            return self.step_in_parts(inputs, labels)
        loss = self.loss(inputs, labels)
        if line and line.has("loss", "optimizer"):
            line.run(dict(self.scope, loss=loss))
            return loss.item()
        loss.backward()
        if line and line.has("max_norm"):
            line.run(dict(self.scope, max_norm=MAX_NORM))
        if not self.steps_itself:
            self.optimizer.step()
        return loss.item()

    def run(self):
        losses, generator = [], torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            losses.append(self.step(*self.kind.batch(generator)))
            self.optimizer.zero_grad(set_to_none=True)
        return losses


def verdict(promise, before, after):
    if before == after:
        return "bitwise"
    within = all(abs(a - b) <= TOLERANCE * abs(b) for a, b in zip(after, before))
    return "tolerance" if within and promise != "different-model" else "different"


KEPT = {"bitwise": {"bitwise"}, "tolerance": {"bitwise", "tolerance"}, "different-model": {"different"}}


def check(entry, baselines):
    """(outcome, detail): "as promised", "broken", "not run" or "nothing to run"."""
    text = entry["turn_on"]
    if text.startswith("no equivalent"):
        return "nothing to run", text
    try:
        line = Line(text)
    except SyntaxError as error:
        return "broken", f"not Python: {error}"
    kinds = [Convolutions] if line.has("channels") or line.has("outputs") or "nn.ReLU" in text else [Transformer]
    found = []
    for kind in kinds:
        if kind not in baselines:
            baselines[kind] = Training(kind, None).run()
        try:
            losses = Training(kind, line).run()
        except ModuleNotFoundError as error:
            return "not run", f"needs the package {error.name}"
        except RuntimeError as error:
            if "accelerator" in str(error) and not torch.cuda.is_available():
                return "not run", f"needs a GPU: {error}"
            return "broken", f"RuntimeError: {error}"
        except Exception as error:  # whatever a line does wrong is the finding
            return "broken", f"{type(error).__name__}: {error}"
        found.append(verdict(entry["preserves"], baselines[kind], losses))
    kept = all(result in KEPT[entry["preserves"]] for result in found)
    return ("as promised" if kept else "broken"), ", ".join(found) + f" (promised: {entry['preserves']})"


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="optimizations; all when not given")
    parser.add_argument("--vramlab", default=os.path.join(root, "build", "cpu", "bin", "vramlab"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    listed = subprocess.run([options.vramlab, "list", "optimizations", "--json"], check=True, capture_output=True)
    entries = json.loads(listed.stdout)["optimizations"]
    unknown = set(options.names) - {entry["name"] for entry in entries}
    if unknown:
        parser.error("unknown: " + ", ".join(sorted(unknown)))
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    baselines, results = {}, []
    for entry in entries:
        if options.names and entry["name"] not in options.names:
            continue
        outcome, detail = check(entry, baselines)
        results.append(dict(name=entry["name"], turn_on=entry["turn_on"], outcome=outcome, detail=detail))
        if not options.json:
            print(f"{entry['name']:<16} {outcome:<15} {detail}\n{'':<16} {entry['turn_on']}", flush=True)
    if options.json:
        print(json.dumps(dict(torch=torch.__version__, results=results), indent=2))
    return any(result["outcome"] == "broken" for result in results)


if __name__ == "__main__":
    sys.exit(main())
