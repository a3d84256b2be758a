"""Do the tests notice a fault? Real faults are put into a copy of the library, one at a time, and
the tests of that file must fail.

    make mutants                          all of them, two at a time
    python tests/mutants.py kgw rank      those whose file's name contains one of these words

pytest does not collect this script. A mutant counts as caught if a test is reported as FAILED; one
that only breaks an import or runs out of time is counted apart, because it says little about the
tests. Fewer than 95% caught, or unsound tests, exit with 1.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED, LINKED = (
    ["gaussmark_lib", "notebooks", "tests", "pyproject.toml"],
    [
        "data",
        "papermill_runs",
        "Makefile",
    ],
)
CAUGHT_SHARE, AT_ONCE, TIMEOUT = 0.95, 2, 240

# Where else than in the file of its name, in tests/core or tests/unit, a file's tests are.
ELSEWHERE = {
    "perturb.py": "core/test_weights.py core/test_rank_reduce.py core/test_score.py",
    "weights.py": "core/test_perturb.py",
    "gradients.py": "core/test_channel.py core/test_score.py core/test_rank_reduce.py"
    " core/test_batch_invariance.py",
    "engine/terms.py": "core/test_rank_reduce.py core/test_gradients.py",
    "engine/arithmetic.py": "core/test_perturb.py core/test_likelihood.py core/test_gradients.py",
    "engine/philox.py": "core/test_stream.py",
    "engine/stream.py": "core/test_stream.py core/test_perturb.py",
    "engine/hooks.py": "core/test_generate.py",
    "engine/gguf_files.py": "core/test_gguf_export.py",
    "engine/gguf_writing.py": "core/test_gguf_export.py",
    "engine/key_files.py": "core/test_keys.py",
    "engine/checkpoints.py": "core/test_perturb.py",
    "likelihood.py": "core/test_score.py core/test_gradients.py",
    "generate.py": "core/test_kgw.py",
    "keys.py": "core/test_perturb.py",
    "scheme.py": "unit/schemes/test_synthid.py core/test_kgw.py",
    "workbench/rewrite/__init__.py": "unit/rewrite/test_rewrite.py core/test_corrupt.py",
    "beyond/release/suspects.py": "unit/release/test_provenance.py",
    "workbench/pairs.py": "unit/experiments/test_layer_sigma_sweep.py",
    "beyond/joint/directions.py": "unit/joint/test_memory.py",
    "beyond/joint/memory.py": "unit/joint/test_stream.py",
    "beyond/joint/law.py": "unit/joint/test_batch.py",
    "beyond/token_level/keys.py": "core/test_keys.py",
    "beyond/token_level/gradients.py": "unit/token_level/test_keys.py",
    "workbench/cli/answers.py": "unit/cli/test_detect.py unit/cli/test_generate.py",
    "workbench/cli/answering.py": "unit/cli/test_detect.py",
    "workbench/cli/question.py": "unit/cli/test_detect.py",
    "workbench/cli/scoring.py": "unit/cli/test_detect.py",
    "workbench/cli/streaming.py": "unit/cli/test_detect.py",
    "workbench/cli/writing.py": "unit/cli/test_generate.py",
    "workbench/cli/inputs.py": "unit/cli/test_inputs.py robustness/test_command_line.py",
    "workbench/cli/normalise.py": "unit/cli/test_inputs.py",
    "engine/text_files.py": "core/test_text_files.py unit/cli/test_generate.py",
    "engine/typography.py": "core/test_typography.py",
    "workbench/cli/power.py": "unit/cli/test_audit.py",
    "workbench/runs/folder.py": "unit/runs/test_run.py unit/sweeps/test_page.py",
    "workbench/runs/death.py": "unit/runs/test_kernel.py",
    "workbench/runs/kernel.py": "unit/runs/test_run.py unit/runs/test_kernel.py",
    "workbench/runs/notebook.py": "unit/runs/test_identity.py",
    "workbench/runs/parameters.py": "unit/runs/test_presets.py",
    "workbench/sweeps/jobs.py": "unit/sweeps/test_sweep.py",
    "workbench/sweeps/tour.py": "unit/sweeps/test_page.py",
    "workbench/sweeps/__init__.py": "unit/sweeps/test_sweep.py",
}


class Mutant(NamedTuple):
    """A fault: ``new`` stands where the library has ``old``, which must occur exactly once in the
    file.
    """

    file: str
    fault: str
    old: str
    new: str

    @property
    def path(self) -> str:
        """The file's place in a checkout."""
        room, name = os.path.split(self.file)
        if room == "experiments":
            return f"notebooks/gaussmark_experiments/{name}"
        return f"gaussmark_lib/{self.file}"

    @property
    def tests(self) -> list[str]:
        room, name = os.path.split(re.sub("^(beyond|workbench)/", "", self.file))
        own = [f"{tests}/{room}/test_{name}" for tests in ("core", "unit")]
        own = [name for name in map(os.path.normpath, own) if (ROOT / "tests" / name).exists()]
        return [f"tests/{name}" for name in own + ELSEWHERE.get(self.file, "").split()]

    def applied(self, source: str) -> str:
        """The file with the fault in it; LookupError where ``old`` is not there exactly once,
        SyntaxError where the result is no Python.
        """
        if (n := source.count(self.old)) != 1:
            raise LookupError(
                f"{self.file}, {self.fault}: expected exactly one {self.old!r}, found {n}; adapt"
                " tests/mutants.py"
            )
        changed = source.replace(self.old, self.new)
        ast.parse(changed)
        return changed


# The faults of each file: what it is, what stands in the file exactly once, and what the fault has
# in its place.
FAULTS = {
    "perturb.py": [
        (
            "weight not restored",
            'after.callback(setattr, linear.parameter, "data", theta)',
            "pass",
        ),
        ("σ forgotten", "streams(keys, wm.d, wm.sigmas[0])", "streams(keys, wm.d, 1.0)"),
        ("noise not projected", "for xi in of_weight if wm.rank_dropped else ():", "for xi in ():"),
        (
            "the second weight with the first one's σ",
            "of_weight *= wm.sigmas[i] / wm.sigmas[0]",
            "of_weight *= 1.0",
        ),
        (
            "bound key not checked",
            "return wm, listed(keys, wm)",
            "return wm, keys",
        ),
        (
            "config not marked",
            "setattr(config, _MARK, mark)",
            "setattr(config, _MARK, None)",
        ),
        (
            "marked checkpoint allowed",
            "if mark := getattr(model.config, _MARK, None):",
            "if mark := None:",
        ),
        ("gradient at θ + ξ allowed", "if hasattr(model, _MARK):", "if False:"),
    ],
    "weights.py": [
        (
            "embeddings taken for layers",
            "isinstance(module, nn.Linear | Conv1D)",
            "isinstance(module, nn.Linear | Conv1D | nn.Embedding)",
        ),
        (
            "rank off by one",
            "self.rank_dropped >= min(linear.shape)",
            "self.rank_dropped > min(linear.shape)",
        ),
        (
            "the matrix of another model, or one that it has no longer",
            "linears = [Weight(model, name) for name in wm.weights]",
            'linears = vars(wm).get("linears") or [Weight(model, name) for name in wm.weights]',
        ),
        (
            "the projector of another model",
            'vars(self).pop("projectors", None)',
            "pass",
        ),
    ],
    "score.py": [
        ("σ forgotten in ψ", ".double().cpu().numpy() / sigma", ".double().cpu().numpy()"),
        ("Φ instead of 1 − Φ", "norm.sf(psi)", "norm.cdf(psi)"),
        ("p-value underflows", "norm.logsf(psi) / np.log(10)", "np.log10(norm.sf(psi))"),
        ("natural logarithm", "norm.logsf(psi) / np.log(10)", "norm.logsf(psi)"),
        (
            "a pair's key by its place in the block",
            "[keys[gradient.text] for gradient in block]",
            "keys[: len(block)]",
        ),
        (
            "names of other keys in pairs",
            "[[name] for name in names] if paired",
            "[names[:1]] * len(names) if paired",
        ),
        (
            "rows in order of length",
            '.sort_values(["text", "n_tokens"]',
            '.sort_values(["n_tokens"]',
        ),
    ],
    "gradients.py": [
        ("mean instead of sum", "= torch.from_numpy(w)", "= torch.from_numpy(w / len(y))"),
        ("weights of tokens forgotten", "np.array(token_weights[i], float)", "np.ones(len(y))"),
        ("the channel forgotten", "w[:end] *= channel.kept", "channel.kept"),
        ("the channel of another token", "log_q[np.array(y)])", "log_q[np.array(y) - 1])"),
        ("gradient not projected", "G.projected(P) if isinstance(G, Factors) else P(G)", "G"),
        (
            "G not divided by its norm",
            "G.flatten() * (c / self.norm)",
            "G.flatten() * c",
        ),
        ("several weights with one σ", "(c / self.norm)", "(1 / self.norm)"),
        ("what all tokens share is not taken off", "mul_(-added[..., None])", "mul_(0.0)"),
        ("one direction spoils the next", "(p.clone() if more else p)", "p"),
        ("a beginning is the whole", "w[end:] = 0", "pass"),
        ("likelihood of the whole", "log_p[row][:n_tokens]", "log_p[row]"),
        ("σ left out of a cosine", "sum(c**2 * inner", "sum(inner"),
        (
            "rounding taken for a gradient",
            "not least < size < math.inf",
            "not 0 <= size < math.inf",
        ),
        ("first token not scored", "w[end:] = 0", "w[end:] = w[0] = 0"),
        ("rounding taken for a gradient", "ROUNDING = 64", "ROUNDING = 0"),
        ("small gradients taken for rounding", "ROUNDING = 64", "ROUNDING = 1e7"),
        ("numbers within the batch", "TextGradient(text, parts", "TextGradient(row, parts"),
    ],
    "beyond/channel.py": [
        ("a token after a foreign one counts", "v * np.append(1.0, v[:-1])", "v"),
        ("the token after, not before", "np.append(1.0, v[:-1])", "np.append(v[1:], 1.0)"),
        ("odds upside down", "np.log((1 - f) / f)", "np.log(f / (1 - f))"),
        ("counts without ½", "np.add(counts, 0.5)", "np.add(counts, 1.5)"),
        ("frequencies that are no shares", "np.log(numbers / numbers.sum())", "np.log(numbers)"),
        ("one direction twice", " or len({*values}) < len(values)", ""),
        ("everything exchanged", "0 <= f < 1 for f", "0 <= f <= 1 for f"),
    ],
    "rank_reduce.py": [
        (
            "one side only",
            "project_out(project_out(matrix, self.left).T, self.right).T",
            "project_out(matrix, self.left)",
        ),
        ("rank off by one", "[:, :k].clone()", "[:, 1 : k + 1].clone()"),
        (
            "cache knows no matrix",
            "theta.dtype, hashlib.sha256(bits).digest()",
            "theta.dtype",
        ),
        (
            "reflection",
            "return matrix - U @ (U.T @ matrix)",
            "return matrix - 2 * U @ (U.T @ matrix)",
        ),
    ],
    "engine/terms.py": [
        ("a wide matrix summed at once", "if matrix.numel() > WIDE:", "if False:"),
        (
            "norm without what two terms share",
            "return products.sum().item()",
            "return products.trace().item()",
        ),
        ("terms projected on one side only", "a - a @ right @ right.T", "a"),
        ("inputs off by one", "wide(a[row, :n])", "wide(a[row, 1 : n + 1])"),
    ],
    "engine/arithmetic.py": [
        ("θ − ξ", "wide(theta) + xi", "wide(theta) - xi"),
        (
            "ξ rounded before it is added",
            "(wide(theta) + xi).to(theta.dtype)",
            "theta + xi.to(theta.dtype)",
        ),
        (
            "float32 rounded to the model's dtype",
            " and torch.finfo(p.dtype).bits in widened\n",
            "\n",
        ),
        ("any noise that broadcasts", "if xi.shape != theta.shape:", "if False:"),
        ("a watermark of nothing", "if changed == 0:", "if False:"),
        ("parameters stay frozen", "p.requires_grad_(True)", "pass"),
    ],
    "likelihood.py": [
        ("states of the token itself", "ids[:, first + 1 :], (0, 1)", "ids[:, first:], (0, 0)"),
        ("first token not scored", "start = len(x) - 1 - first", "start = len(x) - first"),
        ("padding scored", ".masked_fill(number == 0, 0.0)", ""),
    ],
    "engine/philox.py": [
        ("counters from 0", "storage_offset() // 4 + 1", "storage_offset() // 4"),
        ("one key for all rounds", " + i * STEPS[j]", ""),
        ("a carry lost", "(right >> 32 & LOW) + (left", "(left"),
        ("bits from the other end", " >> 12 &", " &"),
    ],
    "engine/stream.py": [
        ("threads share their memory", "out=rows[i]", "out=rows[0]"),
        ("a thread begins elsewhere", ".advance(start // 4)", ".advance(start // 8)"),
        (
            "both tails on one side",
            "] - 1.6)\n        z[i] = math.copysign(size * scale, -ends[i])",
            "] - 1.6)\n        z[i] = size * scale",
        ),
        ("the far tail by the near one's polynomial", "if r[i] > 5.0:", "if r[i] > 9.0:"),
        ("the tail's numbers elsewhere", "z[tails] = _tail(", "z[: len(tails)] = _tail("),
    ],
    "generate.py": [
        ("σ twice", "(s, xi[0] / s)", "(s, xi[0])"),
        (
            "all rows under the first mark",
            "noises.get(mark) for mark in marks",
            "noises.get(marks[0]) for mark in marks",
        ),
        (
            "temperature after the scheme",
            "if processor and temperature and shape != (1, 1):",
            "if False:",
        ),
    ],
    "engine/hooks.py": [
        ("every row has the first one's noise", "start := start + len(same)", "start := len(rows)"),
    ],
    "engine/gguf_files.py": [
        (
            "rows of q as llama.cpp has them are read as they are",
            "return _in_halves(theta, n_heads) if n_heads else theta",
            "return theta",
        ),
        (
            "rows of k written in the order of as many heads as q has",
            'field(reader, f"{architecture}.attention.{heads}", of_all)',
            "of_all",
        ),
        (
            "a marked file loads as a base model",
            "key_id = field(reader, KEY_ID)",
            "key_id = None",
        ),
        (
            "a layout that is not known is taken for plain",
            "if architecture not in PLAIN | PERMUTED:",
            "if False:",
        ),
    ],
    "engine/gguf_writing.py": [
        (
            "a replaced tensor keeps its old type in the header",
            "kind = kinds.get(tensor.name, tensor.tensor_type)",
            "kind = tensor.tensor_type",
        ),
        (
            "the file is in place before it is whole",
            "partial = Path(folder) / path.name",
            "partial = path",
        ),
        (
            "the whole file in memory",
            "base.read(min(left, AT_ONCE))",
            "base.read(left)",
        ),
    ],
    "engine/key_files.py": [
        (
            "seal not checked",
            "sealed = hmac.compare_digest(file.seal.encode(), _seal(secret, content).encode())",
            "sealed = True",
        ),
        (
            "a seal that anybody can make",
            'hmac.new(derived(secret, "key file seal"), ',
            "hmac.new(bytes(32), ",
        ),
        ("open to others", "mode & 0o077", "mode & 0"),
        ("a key written over", "os.link(partial, path)", "os.replace(partial, path)"),
    ],
    "keys.py": [
        (
            "other weights not looked at",
            "made_with != checkpoints.digest(wm.model)",
            "made_with == checkpoints.digest(wm.model)",
        ),
        (
            "a million possible keys",
            "return standard_normal(self.seed,",
            "return standard_normal(self.seed % 10**6,",
        ),
    ],
    "engine/checkpoints.py": [
        (
            "a write is not seen",
            "if model not in _digests or _digests[model][0] != state:",
            "if model not in _digests:",
        ),
    ],
    "stats.py": [
        (
            "clusters counted as rows",
            "n / (n - 1) * (residuals**2).sum()",
            "(rows - value).var() * len(rows)",
        ),
        ("the cosine for its angle", "half = np.arcsin(rho)", "half = rho"),
        ("the last of several alone", "total += ", "total = "),
    ],
    "kgw.py": [
        ("context off by one", "context_width=1", "context_width=2"),
        (
            "repeated pairs count twice",
            "rows.append((i, len(ids), len(pairs), n_green))",
            "rows.append((i, len(ids), len(text) - 1, n_green))",
        ),
        ("P(X > hits)", '"p_value": stats.binom.sf(hits - 1,', '"p_value": stats.binom.sf(hits,'),
        ("key not used", 'int.from_bytes(self.key.derived("KGW")[:8], "big")', "15485863"),
        ("config tells the secret", 'self.key.derived("KGW")[:8]', "self.key.secret[:8]"),
        ("prompt scored", "in pairwise(text) if", "in pairwise([*prompts[i], *text]) if"),
        (
            "γ instead of its realised share",
            "share = self.n_green(model) / tokens.config(model).vocab_size",
            "share = self.green_share",
        ),
        ("bias doubled", "bias=self.bias,", "bias=2 * self.bias,"),
        ("public pairs count", "if before != 0}", "if before != -1}"),
        ("another list than transformers'", "rng.manual_seed(", "rng.manual_seed(1 + "),
    ],
    "scheme.py": [
        (
            "one key for all rows",
            "for key in keys[rows]]",
            "for _ in keys[rows] for key in keys[:1]]",
        ),
        ("a batch begins with the first key", "for key in keys[rows]]", "for key in keys]"),
    ],
    "beyond/schemes/synthid.py": [
        (
            "weights of other rounds",
            "np.tile(self.weights, len(first))[index]",
            "np.repeat(self.weights, len(first))[index]",
        ),
        (
            "P(sum > total)",
            "tilted[total:] @",
            "tilted[total:] * (np.arange(top + 1 - total) > 0) @",
        ),
        (
            "the last of equal contexts",
            "reversed(list(enumerate(grams[0].tolist())))",
            "enumerate(grams[0].tolist())",
        ),
        (
            "a place counts twice",
            "np.unique((hashes % TABLE).cpu().numpy(), return_index=True)",
            "(hashes % TABLE).flatten().numpy(), np.arange(hashes.numel())",
        ),
    ],
    "beyond/schemes/biases.py": [
        ("p_t is not subtracted", "u = -of_text[", "u = 0 * of_text["),
        ("a token's slope counts once", "np.add.at(u, y, 1.0)", "u[list(set(y))] += 1.0"),
        ("σ is not the noise's", "self.sigma * self.noise", "self.noise"),
        ("key not used", 'self.key.derived("output biases")', 'b"of everybody, alike"'),
    ],
    "beyond/schemes/gumbel.py": [
        ("the smallest r wins", ".argmin(-1)", ".argmax(-1)"),
        ("a repeated context is used again", ".all(-1).any(-1)", ".all(-1).any(-1) & False"),
        (
            "of equal contexts the last counts",
            "after = dict(reversed(after)).items()",
            "after = dict(after).items()",
        ),
        ("log r instead of log(1 − r)", "-np.log1p(-r).sum()", "-np.log(r).sum()"),
        ("key not used", 'self.key.derived("Gumbel-max")', 'b"Gumbel-max"'),
    ],
    "corrupt.py": [
        (
            "with replacement",
            "torch.randperm(n_tokens, generator=rng).tolist()",
            "torch.randint(n_tokens, (n_tokens,), generator=rng).tolist()",
        ),
        ("rounded down", "return round(fraction * n_tokens)", "return int(fraction * n_tokens)"),
        ("replaced by itself", "if changed[place] == ids[place]]", "if False]"),
        ("right prompts", "[*prompts[1:], prompts[0]]", "prompts"),
        ("all texts alike", "SeedSequence([seed, text])", "SeedSequence([seed])"),
        ("seed not used", "SeedSequence([seed, text])", "SeedSequence([text])"),
        ("cut at the old prompt", "max(0, len(ids) - len(y))", "len(ids) // 2"),
        (
            "the wrong share stays",
            "delete(ids[::-1], fraction, rng,",
            "delete(ids[::-1], 1 - fraction, rng,",
        ),
        (
            "the caller's own lists",
            "    responses = tokens.checked_texts(",
            "    _ = tokens.checked_texts(",
        ),
    ],
    "workbench/rewrite/__init__.py": [
        (
            "seed of resampling not used",
            "responses, fraction, seed=seed)",
            "responses, fraction, seed=0)",
        ),
        ("the numbers of another text", "_FRESH = 1 << 96", "_FRESH = 1 << 40"),
    ],
    "beyond/joint/directions.py": [
        (
            "sums in float32",
            "rows[:, part].double() @ others[:, part].double().T",
            "(rows[:, part] @ others[:, part].T).double()",
        ),
        ("terms not of length 1", "(g / gradient.norm, a)", "(g, a)"),
        ("a block for each direction", "[block][row] = u", "[block][0] = u"),
    ],
    "beyond/joint/memory.py": [
        ("room for any text", "+ directions.n_bytes(u) > self.budget", "< 0"),
        (
            "an answer that the memory does not know",
            "residual, psi = 0.0, coordinates @ self.innovations",
            "residual = 0.0",
        ),
        ("the same text has no answer", "innovation, repeats = self", "_ = self"),
    ],
    "beyond/joint/public.py": [
        ("every question is a first one", "level_of(1 + max(", "level_of(1 or max("),
        ("the largest level of several", "max(counts.values()", "min(counts.values()"),
        ("of the longer text", "* MIN(n_runs", "* MAX(n_runs"),
        ("every run once more", "np.unique(mixed", "np.sort(mixed"),
        ("a text joins one", "for neighbourhood in joined or [new]", "for neighbourhood in [new]"),
        (
            "the same text is tested anew",
            "                return bool(yes)",
            "                pass",
        ),
        ("levels that add up to more", "(root * following *", "(root *"),
        ("a newer format", "elif (kind, version) != (KIND, FORMAT):", "elif kind != KIND:"),
        ("two processes", '"BEGIN EXCLUSIVE"', '"BEGIN"'),
        ("another state's", "state.refuse_others(self._begun(about), about)", "self._begun(about)"),
    ],
    "beyond/attacks/learning.py": [
        ("the plain law alone", "(1 + kappa * x)", "(1 + x)"),
        ("a copy of any length", "/ estimate.norm())", ")"),
        ("a text with itself", "np.eye(len(squares), dtype=bool)", "np.zeros_like(squares, bool)"),
        ("the price with its sign turned", "(of_p - of_q)", "(of_q - of_p)"),
    ],
    "beyond/attacks/askers.py": [
        ("a climber that goes down", "if answers[i] >= best:", "if True:"),
        ("a text stands beside itself", "(K.sum(1) - 1)", "K.sum(1)"),
        ("what is left of a cosine", "np.sqrt(1 - k**2)", "(1 - k**2)"),
    ],
    "beyond/joint/state.py": [
        ("a key twice", "if len(set(ids)) < len(keys):", "if False:"),
        ("another file written over", "if start != FORMAT:", "if False:"),
        ("a wrong bit", "if first != _first_line(", "if not _first_line("),
        ("open to others", "if mode & 0o077:", "if False:"),
    ],
    "beyond/joint/stream.py": [
        ("bets on ψ's own promise", "grad_norm * answer.residual", "grad_norm"),
    ],
    "beyond/promise.py": [
        ("τ forgotten", "_squared(wm, parts) / tau", "_squared(wm, parts)"),
        (
            "divided by G twice",
            "/ np.asarray(grad_norm, float)",
            "/ np.asarray(grad_norm, float) ** 2",
        ),
        ("no covariance", "errors.sub_(probabilities * errors.sum(-1, keepdim=True))", "errors"),
        ("the channel's weights twice", "np.sqrt(kept)", "kept"),
        ("top-p forgotten", "if top_p < 1:", "if False:"),
        (
            "excess without the entropy",
            "-(own.mean() + entropy.double().mean().item())",
            "-own.mean()",
        ),
        ("slope of the wrong sign", "-mean.double().sum().item()", "mean.double().sum().item()"),
        ("few tokens have a temperature", "if len(targets) >= FEW else 1.0", "if True else 1.0"),
        ("an unknown prompt costs nothing", "n / (n + LOST)", "1.0"),
        ("of its first half", "len(y) // 2 if x == stand_in", "0 if x == stand_in"),
        ("weights without their own σ", "(scale * norm(part)) ** 2", "norm(part) ** 2"),
        ("rank reduction forgotten", "if wm.rank_dropped:", "if False:"),
    ],
    "beyond/token_level/keys.py": [
        ("one key for all tokens", 'k.to_bytes(8, "big")', '(0).to_bytes(8, "big")'),
        ("σ forgotten in Γ", "of_text, wm.sigma * size", "of_text, size"),
        ("sum of norms", "np.linalg.norm(size)", "size.sum()"),
        ("certain tokens are NaN", "if moves.any() else -np.inf", "if True else -np.inf"),
        ("one side not projected", "rank_reduce.project_out(g.T, wm.projectors[0].left)", "g.T"),
        ("noise not projected", "wm.projectors[0](noise(wm, key, k))", "noise(wm, key, k)"),
    ],
    "beyond/token_level/gradients.py": [
        ("positions off by one", "slice(-len(response) - 1, -1)", "slice(-len(response), None)"),
        ("every weight is local", "return not g[0, :-2].any()", "return True"),
    ],
    "beyond/token_level/quantiles.py": [
        ("P(X > hits)", "quantile) - 1, n_tokens", "quantile), n_tokens"),
        (
            "one hit too few",
            "math.floor(quantile * n_tokens + 1e-9) + 1",
            "math.floor(quantile * n_tokens + 1e-9)",
        ),
    ],
    "beyond/token_level/divergence.py": [
        ("positions off by one", "predicts = k - n_tokens - 1", "predicts = k - n_tokens"),
    ],
    "beyond/tracing/codebook.py": [
        (
            "codes of any length",
            "return codes / np.sqrt(squares)[:, None]",
            "return codes / np.sqrt(self.n_base)",
        ),
        ("one code for all", "[user % GROUP]", "[0]"),
        (
            "a user's key written",
            '        raise KeyFileError(\n            f"user',
            '        return super().save(path)\n        raise KeyFileError(\n            f"user',
        ),
        ("one base noise for all", 'f"base noise {j}"', '"base noise"'),
        ("users outside", "least=0, most=most, show=show", "least=-9, show=show"),
    ],
    "beyond/tracing/attribution.py": [
        ("no price for many users", "np.log1p(-tail))", "np.log1p(-tail) / n_users)"),
        ("one dimension too many", "(m - 1) / 2, 0.5", "m / 2, 0.5"),
        ("users numbered within their group", "number + here", "here"),
        (
            "the runner-up forgets the winner before",
            "np.minimum(first, top), second",
            "second, second",
        ),
    ],
    "beyond/joint/law.py": [
        ("a tie is no alarm", 'side="left"', 'side="right"'),
    ],
    "beyond/tracing/authors.py": [
        ("the last text alone", "total.add_(one.G)", "one.G"),
        ("a window begins anew", "(before + rest[:n])[", "rest[:n]["),
    ],
    "beyond/tracing/spans.py": [
        ("a block holds its beginning", "beginning.G - before", "beginning.G"),
        ("one span for all", "float(min(1.0, len(A) * norm.sf(t)", "float(min(1.0, norm.sf(t)"),
        ("Bonferroni's bound", "(1 / counts).mean()", "1"),
        (
            "independent spans",
            "n += chosen * (beyond - (n * chosen).sum(1))[:, None]",
            "n += chosen * beyond[:, None]",
        ),
        ("a block short", '"end": ends[last - 1]', '"end": ends[last - 2]'),
        ("one block's end for all", "before = beginning.G", "pass"),
    ],
    "divergence.py": [
        (
            "first token not counted",
            ".to(is_token.device) * is_token)",
            ".to(is_token.device) * is_token)[:, 1:]",
        ),
        (
            "the other direction",
            "(q.exp() * (q - p))",
            "(p.exp() * (p - q))",
        ),
    ],
    "workbench/words.py": [
        ("the interval's low end twice", "to {shown(high)}", "to {shown(low)}"),
    ],
    "workbench/record.py": [
        ("results replaced", "write_json(path, known | plain)", "write_json(path, plain)"),
        ("nan recorded", "if isinstance(value, float) and not math.isfinite(value):", "if False:"),
    ],
    "workbench/cli/answering.py": [
        ("words go on behind numbers", '[*super().asked, "answered"]', "super().asked"),
    ],
    "workbench/cli/question.py": [
        (
            "the level forgotten in a line's name",
            "fingerprints, self.level, self.edited]",
            "fingerprints, self.edited]",
        ),
    ],
    "workbench/cli/scoring.py": [
        (
            "the control key reported as a key",
            "for of_key in scores[:-1]]",
            "for of_key in scores]",
        ),
    ],
    "workbench/cli/streaming.py": [
        ("answers shown before they are saved", "self.state.save(self.path)", "pass"),
    ],
    "workbench/cli/writing.py": [
        (
            "every batch draws from the first rows",
            "rows=[prompt.item.row for prompt in prompts],",
            "rows=None,",
        ),
    ],
    "workbench/cli/answers.py": [
        (
            "other texts' lines taken",
            "if item is None or row.get(DIGEST) != digest(item, asked):",
            "if item is None:",
        ),
        (
            "failed texts end well",
            "return PARTLY if now.failed + earlier.failed else 0",
            "return 0",
        ),
        ("a cut-off line kept", "kept.truncate(end)", "pass"),
        (
            "two processes with one file",
            "fcntl.LOCK_EX | fcntl.LOCK_NB",
            "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ),
    ],
    "workbench/cli/inputs.py": [
        ("names may turn a terminal", 'match[0].encode("unicode_escape").decode()', "match[0]"),
        ("results among the texts", "if path == place or is_inside", "if is_inside"),
        ("a file's error is that of a text", "first[0].required()", "pass"),
        (
            "the prompt of the options taken",
            "prompt if item.prompt is None else item.prompt",
            "prompt",
        ),
    ],
    "workbench/cli/normalise.py": [
        ("results of another question taken", '[*super().asked, "normalised"]', "super().asked"),
        ("an empty version tested", 'if text in ("", item.text)', "if text == item.text"),
    ],
    "engine/text_files.py": [
        (
            "a prompt keeps the editor's line end",
            'if field == "prompt" else found',
            'if field == "none" else found',
        ),
        (
            "line ends of JSON kept",
            "return Item(name, line_feeds(text),",
            "return Item(name, text,",
        ),
        ("capitals are another ending", "str(name).lower().removesuffix", "str(name).removesuffix"),
        ("a ragged row read", "elif len(cells) < len(names) or any", "elif any"),
        ("a broken quote read on", "delimiter=delimiter, strict=True", "delimiter=delimiter"),
        ("the first text taken for names", 'or name.endswith((".", "!", "?"))', ""),
        ("any of several columns", "if len(places) != 1:", "if not places:"),
        ("several texts taken for one", "if format := several(found.text, field):", "if False:"),
    ],
    "engine/typography.py": [
        ("verse joined", "if all(line[:1].isupper() for line in later):", "if not later:"),
        ("lists joined", "not STARTS_A_BLOCK.match(line)\n        and ", ""),
    ],
    "beyond/tracing/versions.py": [
        ("only the first version tested", "score.largest(directions, psi)", "psi[0]"),
        ("only the last version tested", "score.largest(directions, psi)", "psi[-1]"),
        ("the largest taken as one test", "score.largest(directions, psi)", "psi.max(axis=0)"),
    ],
    "workbench/cli/power.py": [
        (
            "the key draws nothing",
            "process(seen[:, : len(x) + t], logits[t : t + 1])",
            "logits[t : t + 1]",
        ),
        ("another share of greens", "binom.isf(level, n, 0.25)", "binom.isf(level, n, 0.35)"),
        ("the spread of draws is the texts'", "spread * of_texts**0.5", "spread"),
    ],
    "workbench/verdict.py": [
        (
            "short texts called unmarked",
            "is_short = power is not None and power < ENOUGH",
            "is_short = power is not None and power < 0",
        ),
        (
            "earlier answers ignored",
            'row["p_value"] if row.get("p_given") is None else row["p_given"]',
            'row["p_value"]',
        ),
    ],
    "workbench/runs/folder.py": [
        ("force forgotten", "if not force and (known", "if (known"),
        ("open findings first", "[*OUTCOMES].index(claim", "len(claim"),
        (
            "the second of two records kept",
            "place(partial, target, replace=force)",
            "place(partial, target, replace=True)",
        ),
        ("a complete record replaced", "if replace or load(target) is None:", "if True:"),
        ("a ratio in percent", "< 1e-9 * n", "< n"),
    ],
    "workbench/runs/death.py": [
        ("every death is a crash", "CAUSES.get(exit_code, CRASHED)", "CRASHED"),
    ],
    "workbench/runs/kernel.py": [
        (
            "memory that is free counted as in use",
            "memory.total - memory.available",
            "memory.total",
        ),
        ("sys.exit taken for the end", "if notebook.metadata.papermill.exception:", "if False:"),
        (
            "a signal to a fork that has ended hides why",
            "with suppress(ProcessLookupError):  # it has ended",
            "with suppress(ZeroDivisionError):",
        ),
        (
            "a dead kernel is asked to shut down",
            "if await self.is_alive():",
            "if True:",
        ),
        (
            "a kernel that we stop is called dead",
            "if self.has_process and not self.parent.shutting_down:",
            "if self.has_process:",
        ),
        (
            "memory as it is after the death",
            "max(kernel.most_memory, memory_in_use())",
            "memory_in_use()",
        ),
        (
            "no kernel without the fork server",
            "except (EOFError, OSError):  # the server",
            "except ZeroDivisionError:  # the server",
        ),
    ],
    "workbench/runs/notebook.py": [
        (
            "comments and docstrings counted",
            "return None if isinstance(node.value, ast.Constant) else node",
            "return node",
        ),
        ("imports inside functions left out", "ast.walk(tree)", "tree.body"),
        ("imports of imports left out", "waiting |= imports", "pass"),
        (
            "a copy taken for the old file",
            "status.st_mtime_ns, status.st_ctime_ns, status.st_ino)",
            "status.st_mtime_ns)",
        ),
        (
            "every name of a file hashed",
            "if parameters.is_path(name) and isinstance",
            "if isinstance",
        ),
        ("values left out of the id", '"parameters": dict(values),', '"parameters": {},'),
    ],
    "workbench/runs/parameters.py": [
        ("open ends closed", '"gt", "le" if', '"ge", "le" if'),
        ("not strict", "strict=True", "strict=False"),
        (
            "unknown names accepted",
            'problems.append(f"{key}: no such parameter; {nearest(key, declared)}")',
            "pass",
        ),
        ("aliases accepted", "if has_alias:", "if False:"),
    ],
    "workbench/runs/presets.py": [
        (
            "unknown names of a shared preset taken",
            "for name, value in others.items() if name in declared}",
            "for name, value in others.items()}",
        ),
    ],
    "workbench/sweeps/grid.py": [
        (
            "a name given twice accepted",
            "for name in crossed if any(",
            "for name in crossed if all(",
        ),
    ],
    "workbench/sweeps/jobs.py": [
        ("another code's answer", "job.values).id != job.id", "job.values).id is None"),
        (
            "outcomes in the order of their ends",
            "for future in names]\n\n\ndef run_one",
            "for future in reversed(names)]\n\n\ndef run_one",
        ),
        ("an interruption that stops no run", "        stop.set()\n", ""),
        ("a run on fewer GPUs", "gpus())] * gpus_per_run", "gpus())]"),
    ],
    "workbench/sweeps/__init__.py": [
        ("what has a record runs again", "if job.id not in known]", "]"),
        ("a sweep with failures is complete", '"failed" if failed else "complete"', '"complete"'),
    ],
    "workbench/sweeps/tables.py": [
        ("tables of failed runs", '"complete" if run else "failed"', '"complete"'),
        ("a result takes a parameter's column", 'f"result.{key}" if key in row else key', "key"),
    ],
    "workbench/sweeps/tour.py": [
        ("timings beside other notebooks", 'if not stop.job.notebook.tour.get("alone")', "if True"),
    ],
    "workbench/quality/compare.py": [
        ("a key's items taken for independent", 'cluster=rows["key"], ', ""),
        ("each random check at the level of all", ' / control["measure"].nunique()', ""),
        ("blind to a rise", '(table["low"] > 0)', '(table["low"] > 9)'),
    ],
    "workbench/quality/judge.py": [
        ("one order only", "(ours + 1 - theirs) / 2", "ours"),
        ("no shorter history", "len(counts) * q)", "len(counts))"),
    ],
    "workbench/quality/text_measures.py": [
        ("trained on what it judges", "train, test = np", "test, test = np"),
    ],
    "workbench/quality/harness.py": [
        ("a question cut", "if n > context", "if n > 2 * context"),
    ],
    "experiments/quality.py": [
        ("the same noise twice", "for sign in (1, -1):", "for sign in (1, 1):"),
    ],
    "experiments/robustness.py": [
        (
            "a signal without its norm",
            'signal=table["statistic"] * norm',
            'signal=table["statistic"]',
        ),
    ],
    "experiments/kgw_baseline.py": [
        (
            "plain texts from themselves",
            "for several in (texts.values(), plain[1:])",
            "for several in (texts.values(), plain)",
        ),
        ("detected at once", "return float(x[-1] + 1)", "return float(x[0])"),
    ],
    "experiments/low_rank.py": [
        ("what both sides drop counts twice", '+ gone["right"] - in_both', '+ gone["right"]'),
        ("a weaker σ", "mean[0] / mean[rank]", "mean[rank] / mean[0]"),
        ("P never forgotten", "(wm, replace(wm, rank_dropped=0))", "(wm, wm)"),
        ("what is left, not which share", "(after / before) / (vanilla", "after / (vanilla"),
    ],
    "workbench/pairs.py": [
        ("the wrong key is the right one", "pairs.keys[1:] + pairs.keys[:1]", "pairs.keys"),
        (
            "cells take other cells' keys",
            "pairs.keys * len(wms)",
            "[key for key in pairs.keys for _ in wms]",
        ),
    ],
    "beyond/release/provenance.py": [
        (
            "changed rows weigh like others",
            "w = n.sqrt() / (lengths / n.sqrt()).clamp_min(1)",
            "w = n.sqrt()",
        ),
        (
            "Δ not projected",
            "(wm.projectors[i](delta) if wm.rank_dropped else delta)",
            "delta",
        ),
        ("all weights with the first one's σ", "else delta) / sigma", "else delta) / wm.sigmas[0]"),
    ],
    "beyond/release/suspects.py": [
        ("NaN is tested", 'check_finite(theta, f"{weight.name} of {source}")', "pass"),
    ],
    "beyond/release/attacks.py": [
        ("the largest are pruned", "size.argsort(dim=1)[:", "(-size).argsort(dim=1)[:"),
        ("wanda without inputs", "size = wide(theta).abs() * scale", "size = wide(theta).abs()"),
        ("NF4 rounds down", "edges = (levels[1:] + levels[:-1]) / 2", "edges = levels[1:]"),
        ("noise below its edge stays", "square.clamp_min(0).sqrt() / S, 0.0)", "S, S)"),
    ],
    "workbench/claims.py": [
        ("a small n at the edge", "self.estimate.n >= self.planned", "True"),
    ],
    "experiments/detectability.py": [
        (
            "power predicted from ψ at the threshold",
            'norm.cdf(sigma * texts["grad_norm"] - tau)',
            'norm.cdf(sigma * texts["grad_norm"])',
        ),
    ],
    "experiments/speed.py": [
        ("the warm-up counts", "rows[len(tasks) :]", "rows"),
    ],
    "workbench/plots/panels.py": [
        ("lines as the rows come", ".sort_values(x)", ""),
    ],
}
MUTANTS = [Mutant(file, *fault) for file, faults in FAULTS.items() for fault in faults]


def main(words: Sequence[str]) -> int:
    chosen = [
        mutant for mutant in MUTANTS if not words or any(word in mutant.file for word in words)
    ]
    for mutant in chosen:
        mutant.applied((ROOT / mutant.path).read_text(encoding="utf-8"))  # before any test runs
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        in_copy = partial(_outcome, folder=Path(folder))
        sound = [
            outcome for outcome in pool.map(in_copy, _baseline(chosen)) if outcome != "survived"
        ]
        if sound:
            print(f"without any mutant, the tests should pass: {', '.join(sound)}")
            return 1
        outcomes = []
        for mutant, outcome in zip(chosen, pool.map(in_copy, chosen), strict=True):
            print(f"{outcome:9}  {mutant.file:28}  {mutant.fault}", flush=True)
            outcomes.append(outcome)
    left = [
        f"{mutant.file}, {mutant.fault} ({outcome})"
        for mutant, outcome in zip(chosen, outcomes, strict=True)
        if outcome != "caught"
    ]
    print(
        f"{len(chosen) - len(left)} of {len(chosen)} caught; survivors: {'; '.join(left) or 'none'}"
    )
    return int(len(chosen) - len(left) < CAUGHT_SHARE * len(chosen))


def _baseline(mutants: Sequence[Mutant]) -> list[Mutant]:
    """For each file, a mutant that changes nothing: its tests must pass."""
    return [
        Mutant(file, "none", "", "") for file in dict.fromkeys(mutant.file for mutant in mutants)
    ]


def _outcome(mutant: Mutant, folder: Path) -> str:
    """``caught`` by a failing test, ``survived``, ``broke`` (an error before any test) or ``timed
    out``.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    for name in COPIED:
        original = ROOT / name
        if original.is_dir():
            shutil.copytree(original, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(original, place / name)
    for name in LINKED:
        (place / name).symlink_to(ROOT / name)
    if mutant.old:
        file = place / mutant.path
        file.write_text(mutant.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(place), str(place / "notebooks")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-rf",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        *mutant.tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        shutil.rmtree(place)
    if done.returncode == 0:
        return "survived"
    failed = done.returncode == 1 and any(
        line.startswith("FAILED ") for line in done.stdout.splitlines()
    )
    return "caught" if failed else "broke"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
