"""The work of notebooks 00 to 06; see ``work``."""

from gaussmark_lib.plan.cost import Read, Score, Write
from gaussmark_lib.plan.steps import Setting, Step
from gaussmark_lib.plan.work import (
    MANY,
    READ,
    default,
    fitting,
    harness,
    moved,
    of,
    solved,
    written_and_scored,
)


@of("00")
def first_watermark(p, setting: Setting) -> list[Step]:
    n, T = p.n_prompts, fitting(setting, 31, p.n_tokens)
    return [
        *solved(p, 32, T),
        Read("one text written by hand, without a cache", T, 32, T // 2, 1),
        Score("its gradient", 2, 32, T, 1),
        moved("texts, plain and watermarked", 2 * n, 32, T, keys=1),
        Score("them scored", 3 * n, 32, T, keys=1, drawn=3),
        Write("four strengths, written in one batch", 4 * n, 32, T, MANY, keys=1, drawn=1),
        Score("four strengths, scored", 4 * n, 32, T, keys=1, drawn=4),
        Score(
            "texts of the record, by doclm",
            32 if p.model == "doclm" else 0,
            32,
            180,
            keys=2,
            drawn=4,
        ),
    ]


@of("01")
def motivation(p, setting: Setting) -> list[Step]:
    T, cells = fitting(setting, 31, p.n_tokens), len(p.strengths) * p.n_keys
    n, marked = p.n_prompts * (1 + cells), p.n_prompts * cells
    return [
        *solved(p, 32, T),
        *written_and_scored("every strength and key", p, n, 32, T, p.n_keys),
        Read(
            "their divergence from the base model",
            marked,
            32,
            T,
            READ,
            times=2,
            whole=True,
            drawn=cells,
        ),
        Read("their likelihood under each key", 2 * p.n_prompts * p.n_keys, 32, T, drawn=p.n_keys),
        Write("plain texts", p.n_plain, 32, T),
        Read("their entropy", p.n_plain, 32, T),
        Score("their gradients", p.n_plain, 32, T),
        Score(
            "three texts under fresh keys",
            3,
            32,
            T,
            drawn=p.n_fresh,
            keys=max(1, 2**24 // setting.weight.matrix.size),
            held=9,
        ),
    ]


@of("02")
def level_check(p, setting: Setting) -> list[Step]:
    x, kinds = min(p.n_prompt, max(1, (p.n_prompt + p.n_tokens) // 4)), 5
    T = fitting(setting, x - 1, p.n_tokens)
    small = default(setting, p.small_weight, small=p.small_weight is None)
    size, d = small[0].matrix.size, setting.weight.matrix.size
    at_once = min(p.n_fixed_texts, max(1, 2**29 // d))
    rounds = -(-p.n_fixed_texts // at_once)
    pairs = kinds * p.n_texts * p.keys_per_text
    return [
        *solved(p, x, T),
        Write("the model's own texts", p.n_texts + p.n_fixed_texts, x, T),
        Score(
            "texts under fresh keys",
            kinds * p.n_texts,
            x,
            T,
            weights=small,
            drawn=pairs,
            keys=min(p.keys_per_text, max(1, 2**24 // size)),
        ),
        Score(
            "texts under fixed keys",
            4 * p.n_fixed_texts,
            x,
            T,
            drawn=4 * rounds * p.n_fixed_keys,
            held=3 * at_once,
        ),
        Score("the trap", 5 * p.n_trap, x, T, keys=4, drawn=8),
    ]


@of("03")
def detectability(p, setting: Setting) -> list[Step]:
    x = p.n_prompt
    longest = fitting(setting, x - 1, max(p.n_tokens))
    lengths, short, several = (
        len({min(n, longest) for n in p.n_tokens}),
        min(100, longest),
        p.n_spread_prompts * p.n_spread,
    )
    single, free = 10 * min(8, p.n_prompts), len(p.temperatures) * p.n_prompts * p.n_keys
    return [
        *solved(p, x, max(1, longest // 2)),
        *written_and_scored(
            "every key",
            p,
            p.n_prompts * (1 + p.n_keys),
            x,
            longest,
            p.n_keys,
            p.batch_size,
            lengths,
        ),
        Write("many responses to a prompt", several, x, short, p.batch_size),
        Score("their gradients", several, x, short),
        Score("single tokens", single, x + short // 2, 1),
        Write(
            "several temperatures",
            free,
            x,
            short,
            MANY,
            keys=p.n_keys,
            drawn=len(p.temperatures) * p.n_keys,
        ),
        Score(
            "several temperatures, scored",
            free,
            x,
            short,
            keys=1,
            drawn=len(p.temperatures) * p.n_keys,
        ),
        Read("their entropy", free, x, short),
    ]


@of("04")
def layer_sigma_sweep(p, setting: Setting) -> list[Step]:
    x, T, shape = p.n_prompt, fitting(setting, p.n_prompt - 1, p.n_tokens), setting.shape
    names = [name for name in shape.matrices if ".mlp." in f".{name}" or name.startswith("mlp")]
    every = [
        shape.weight(f"{shape.prefix}.{block}.{name}.weight")
        for block in range(shape.layers)
        for name in names
    ]
    n = len(every) if p.n_weights is None else min(p.n_weights, len(every))
    rows = (
        [shape.weight(name) for name in p.weights]
        if p.weights
        else [every[round(i * (len(every) - 1) / max(1, n - 1))] for i in range(n)]
    )
    head = [] if shape.tied or not p.output_head else [shape.weight("lm_head.weight")]
    columns, K = len(p.sigmas or p.psis), p.n_keys
    all_rows = (*rows, *(one for one in head if one not in rows))
    found: list[Step] = [
        Write("plain texts", p.n_prompts, x, T, p.batch_size),
        Score("their gradients for every weight", p.n_prompts, x, T, weights=all_rows),
    ]
    for weight in all_rows:
        found += written_and_scored(
            f"σ × keys on {weight.name}",
            p,
            p.n_prompts * columns * K,
            x,
            T,
            K,
            p.batch_size,
            weights=(weight,),
        )
    cells = len(all_rows) * columns
    found.append(
        Read(
            "cross-entropy in every cell",
            p.n_passages * (1 + cells * K),
            1,
            p.n_passage,
            READ,
            drawn=cells * K,
        )
    )
    found += harness(setting, p.tasks, p.n_items, 1 + cells)
    middle = (rows[len(rows) // 2],)
    checks, far = p.n_check * K * (1 + p.search_steps), p.n_prompts * len(p.far_psis) * K
    found += written_and_scored(
        "the solved σ, and a search", p, checks, x, T, K, p.batch_size, weights=middle
    )
    found.append(Step("their noises", 0, 0, 0, weights=middle, drawn=2 * K * p.search_steps))
    for weight in dict.fromkeys([rows[0], *middle, *head]):
        found += written_and_scored(
            f"too much noise on {weight.name}", p, far, x, T, K, p.batch_size, weights=(weight,)
        )
    return found


@of("05")
def quality(p, setting: Setting) -> list[Step]:
    x, T = p.n_prompt, fitting(setting, p.n_prompt, p.n_tokens)
    marked = 1 + (p.rank_dropped != 0)
    models, keys = 1 + marked * p.n_keys + 2, marked * p.n_keys + 2
    weights = tuple(setting.shape.weight(name) for name in p.exchange_weights) or (
        setting.weight,
        *default(setting, small=True),
        *default(setting, block=-1),
    )
    strengths, half = len(p.exchange_psi), (p.n_exchange + 1) // 2
    cells = len(weights) * strengths * p.n_exchange_keys
    tasks = p.harness_tasks or ["three tasks made from text"]
    n_items = p.n_items * (1 if p.harness_tasks else 3)
    return [
        *solved(p, x, T, marked),
        *solved(type(p)(sigma=None), x, T),  # the strong control
        Read(
            "cross-entropy of human text under every model",
            models * p.n_passages,
            1,
            T,
            p.batch_size,
            drawn=keys,
        ),
        *harness(setting, tasks, n_items, 3 + marked, p.task_limit if p.harness_tasks else None),
        moved("texts by every model", (4 + marked) * p.n_texts, x, T, keys=2 + marked),
        Read("their last hidden states", (4 + marked) * p.n_texts, x, T),
        Score(
            "some of them scored", min(32, p.n_texts) * (2 + marked), x, T, keys=1, drawn=2 + marked
        ),
        Write("plain texts for the price of ψ", p.n_exchange, x, T),
        Score("their gradients for every weight", half, x, T, p.batch_size, weights=weights),
        Write(
            "every strength and weight",
            cells * p.n_exchange,
            x,
            T,
            MANY,
            keys=p.n_exchange_keys,
            drawn=len(weights) * p.n_exchange_keys,
        ),
        Score(
            "every strength and weight, scored",
            cells * p.n_exchange,
            x,
            T,
            keys=p.n_exchange_keys,
            drawn=len(weights) * p.n_exchange_keys,
        ),
        Read(
            "cross-entropy under noise and its negative",
            2 * half * (1 + 2 * cells),
            x,
            T,
            p.batch_size,
            drawn=cells,
        ),
    ]


@of("06")
def robustness(p, setting: Setting) -> list[Step]:
    strengths = {p.strength, *p.fractions} - {0.0}
    x, T = (
        p.n_prompt,
        fitting(setting, p.n_prompt, p.n_tokens, max(1 + max(strengths), 1 / (1 - p.strength))),
    )
    n, K, schemes = p.n_prompts, p.n_keys, 1 + len(p.others)
    ours = 1 + ("rank-reduced" in p.others)
    cells = 1 + 4 * len(strengths) + 3 * len(strengths) + 2 + 4 + p.translation
    versions, nulls = 14, sum(name in ("GaussMark", "rank-reduced") for name in p.null_schemes)
    rewritten = 2 * n * (1 + K * schemes)
    token_keys = ["token keys" in name for name in p.others].count(True)
    return [
        *solved(p, x, T, ours),
        Write("plain texts", n, x, T),
        moved(
            "texts of every scheme and key", n * K * schemes, x, T, keys=K * (ours + token_keys * T)
        ),
        Score(
            "edited plain texts, under every key",
            ours * cells * n,
            x,
            T,
            keys=K,
            drawn=ours * cells * K,
            by={"n_keys": 1},
        ),
        Score(
            "edited texts of ours, under their own key",
            ours * cells * n * K,
            x,
            T,
            keys=1,
            drawn=ours * cells * K,
        ),
        Score(
            "edited plain texts under fixed keys",
            5 * n,
            x,
            T,
            drawn=5 * p.n_fixed_keys,
            held=2 * n,
            at_home=2 * n,
            by={"n_prompts": 2},
        ),
        Write(
            "spans that the model writes anew", rewritten, x + T // 2, max(1, round(T * p.strength))
        ),
        Score(
            "human texts under fresh keys",
            nulls * versions * p.n_null,
            x,
            T,
            keys=p.keys_per_text,
            drawn=nulls * p.n_null * p.keys_per_text,
            by={"keys_per_text": 1},
        ),
    ]
