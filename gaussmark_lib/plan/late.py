"""The work of notebooks 07 to 20; see ``work``."""

from gaussmark_lib.plan.cost import Read, Score, Train, Write
from gaussmark_lib.plan.steps import Setting, Step
from gaussmark_lib.plan.work import (
    CHOICES,
    READ,
    default,
    fitting,
    moved,
    of,
    solved,
    written_and_scored,
)


@of("07")
def low_rank(p, setting: Setting) -> list[Step]:
    x, T = p.n_prompt, fitting(setting, p.n_prompt, p.n_tokens, 1 + p.fraction)
    n, K, ranks, schemes = p.n_prompts, p.n_keys, len({0.0, *p.dropped}), 1 + len(p.contestants)
    grid = len({1.0, *p.factors}) * ranks
    noises, lengths = K * (ranks + 2), len({length for length in p.lengths if length < T}) + 1
    tried = len({0.0, *p.dropped, *p.contestants}) * len({1.0, *p.strengths})
    cells = 1 + len(p.changes)
    vectors = {"held": 4}  # all singular vectors of the weight, and what they are found with
    return [
        *solved(p, x, T),
        Write("plain texts", n, x, T),
        Score("their gradients, projected on three sides", 3 * n, x, T, **vectors),
        moved("texts of every scheme and key", n * K * schemes, x, T, keys=K * schemes),
        Score(
            "right and wrong statistics",
            n * (1 + K * schemes),
            x,
            T,
            drawn=n * p.n_null + n * K * schemes,
            held=4,
        ),
        *written_and_scored(
            "the map over k × σ", p, p.n_map * (grid + 2) * K, x, T, noises, parts=lengths
        ),
        Score("plain texts at every length", n, x, T, parts=lengths, **vectors),
        Read(
            "the task under every k and σ",
            (1 + grid) * p.n_items * CHOICES,
            60,
            4,
            READ,
            drawn=grid,
        ),
        Read(
            "divergence from the base model",
            (n + 1) // 2 * K * schemes,
            x,
            T,
            READ,
            times=2,
            whole=True,
            drawn=K * schemes,
        ),
        Score("every scheme's own texts", n * K * schemes, x, T, keys=1, drawn=K * schemes),
        Read("cost on human text", p.n_changed * (1 + 2 * tried * K), x, T, drawn=tried * K),
        Score(
            "changed texts",
            p.n_changed * cells * schemes * (1 + K),
            x,
            T,
            keys=K,
            drawn=2 * cells * schemes * K,
        ),
    ]


@of("08")
def kgw_baseline(p, setting: Setting) -> list[Step]:
    x, T = p.n_prompt, fitting(setting, p.n_prompt, p.n_tokens, 1 + max(p.fractions))
    n, K, few = p.n_prompts, p.n_keys, min(p.n_few, p.n_prompts)
    several, plains, edits = (
        4 * K + p.synthid_keys,
        max(K, p.synthid_keys),
        1 + len(p.edits) * len(p.fractions),
    )
    timed = (1 + p.repeats) * p.n_timed
    return [
        *solved(p, x, T),
        moved("texts of every scheme and key", n * several, x, T, keys=K),
        Write("plain texts", n * plains, x, T),
        *(
            Score(f"prefixes of {min(m, T)} tokens", n * K, x, min(m, T), keys=1, drawn=K)
            for m in p.lengths
        ),
        Score("gradients of plain texts", n, x, T),
        Score("edited texts", few * edits * (1 + K), x, T, keys=K, drawn=2 * edits * K),
        Read(
            "divergence from the base model",
            few * several,
            x,
            T,
            READ,
            times=2,
            whole=True,
            drawn=K,
        ),
        Read("cross-entropy of all texts", n * (several + plains), x, T),
        Read(
            "entropy under other keys", few * (1 + p.n_entropy_keys), x, T, drawn=p.n_entropy_keys
        ),
        Write("timed writing", 7 * timed, x, p.n_timed_tokens, p.n_timed, copies=1, drawn=1),
        Score("timed reading", timed, x, T, keys=1, drawn=1 + p.repeats, copies=1),
    ]


@of("09")
def token_level_keys(p, setting: Setting) -> list[Step]:
    x, T = p.n_prompt, fitting(setting, p.n_prompt, p.n_tokens, 1 + max(p.fractions))
    n, K, few = p.n_prompts, p.n_keys, min(p.n_changed, p.n_prompts)
    weights = default(setting, p.weight, block=None if p.weight else -1)
    null = default(
        setting, p.null_weight, block=None if p.null_weight else -1, small=p.null_weight is None
    )
    versions, copies = n + few * (len(p.changes) + 1), int(p.dtype != p.model_dtype)
    more = {"weights": weights, "copies": copies}
    return [
        *solved(p, x, T),
        Write("plain texts", n, x, T),
        Score(
            "human texts under keys, a noise a token",
            n,
            x,
            T,
            1,
            weights=null,
            drawn=p.n_null_keys * T,
            copies=copies,
        ),
        moved("texts of one key", n * K, x, T, keys=K, **more),
        moved(
            "texts of token keys, a noise a token, all prompts in one batch",
            n * K,
            x,
            T,
            keys=K * T,
            batch=n,
            batch_by="n_prompts",
            **more,
        ),
        Read(
            "divergence from the base model",
            few * K * 2,
            x,
            T,
            READ,
            times=2,
            whole=True,
            drawn=K * (1 + T),
            **more,
        ),
        Score(
            "every version of the texts, a noise a token",
            (1 + K) * versions,
            x,
            T,
            1,
            drawn=K * T,
            **more,
        ),
        Score(
            "every version of the texts, one key",
            (1 + K) * versions,
            x,
            T,
            keys=K,
            drawn=2 * K,
            **more,
        ),
        Score(
            "one key at every length",
            n * K,
            x,
            T,
            parts=len(p.lengths) + 1,
            keys=1,
            drawn=K,
            **more,
        ),
    ]


@of("10")
def speed(p, setting: Setting) -> list[Step]:
    x, T, n = p.n_prompt, fitting(setting, p.n_prompt, p.n_tokens), p.n_texts
    lengths, repeats, curve = [m for m in p.lengths if m < T], 1 + p.repeats, 1 + p.repeats_of_curve
    K = max(2, min(p.n_keys, 2**29 // setting.weight.matrix.size))
    counts, rows = {1, max(2, K // 4), K}, sorted({*p.batches, p.batch_size})
    column, short = 3 * len(p.column) * 8, max(2, p.n_generated // 4)
    found: list[Step] = [*solved(p, x, T), Write("texts", n, x, T)]
    for m, times in [(T, repeats), *((m, curve) for m in lengths)]:
        found += [
            Score(f"plain loop, {m} tokens", n, x, m, 1, keys=1, again=times),
            Score(f"scored, {m} tokens", n, x, m, p.batch_size, keys=1, drawn=times, again=times),
            Read(f"forward passes, {m} tokens", n, x, m, p.batch_size, times=times),
        ]
    for size in set(p.batches) - {p.batch_size}:
        found += [
            Score(f"scored in batches of {size}", n, x, T, size, keys=1, drawn=curve, again=curve),
            Read(f"forward passes in batches of {size}", n, x, T, size, times=curve),
        ]
    for k in sorted(counts):
        found.append(
            Score(
                f"scored under {k} keys",
                n,
                x,
                T,
                p.batch_size,
                keys=k,
                drawn=K + curve * k,
                again=2 * curve,
                held=K,
            )
        )
    generated = p.n_generated // 4 + p.n_generated // 2
    more = {"copies": 1, "held": K}
    return [
        *found,
        Write(
            "plain and watermarked writing",
            2 * repeats * p.n_rows,
            x,
            p.n_generated,
            p.n_rows,
            **more,
        ),
        Write("shorter texts", 2 * curve * p.n_rows, x, generated, p.n_rows, **more),
        *(
            Write(f"{size} rows", curve * size, x, p.n_generated // 2, size, **more)
            for size in rows
        ),
        Write(
            "a column, all cells in one batch, and cell by cell",
            2 * (curve + 1) * column,
            x,
            short,
            column,
            keys=3,
            drawn=6 * curve,
            **more,
        ),
    ]


@of("11")
def playground(p, setting: Setting) -> list[Step]:
    n, compared = p.n_samples, 3
    return [
        Write("reference texts", 8, 40, p.n_tokens),
        Score("their gradients", 8, 40, p.n_tokens),
        moved("plain and watermarked texts", 2 * n * compared, 40, p.n_tokens, keys=compared),
        Score("them scored", 2 * n * compared + 4, 40, p.n_tokens, keys=2, drawn=2 * compared),
        Score("one sentence under many keys", 1, 1, 25, keys=40, drawn=40),
    ]


@of("12")
def one_key_in_production(p, setting: Setting) -> list[Step]:
    x, T, kinds = p.n_prompt, fitting(setting, p.n_prompt - 1, p.n_tokens), 7 + bool(p.text)
    n, asked, ways = p.n_texts, 8 * p.n_steps + 1, p.n_attacks + 3 * p.n_variants
    kept = kinds * n  # the unit gradients of every kind live to the end
    all_of = {"n_texts": kinds}
    streams, lossy = p.n_streams * len(p.every), p.n_marked_keys
    marked = n * (1 + lossy) + p.n_long + p.n_watched * p.n_streams
    return [
        *solved(p, x, T),
        Score("human texts of every kind", kinds * n, x, T, held=kept + n, by=all_of),
        Step(
            "every text under every key",
            0,
            0,
            0,
            keys=32,
            drawn=p.n_keys,
            held=2 * kept,
            by={"n_texts": 2 * kinds},
        ),
        Step(
            "pairs of a text and a key of its own",
            0,
            0,
            0,
            keys=32,
            drawn=p.n_pairs,
            held=2 * kept,
            by={"n_texts": 2 * kinds},
        ),
        Score(
            "a stream, alone and given references",
            3 * n // 2,
            x,
            T,
            keys=1,
            drawn=2,
            held=kept + n,
            by=all_of,
        ),
        Write(
            "marked texts",
            marked,
            x,
            T,
            keys=1,
            drawn=lossy + 1 + p.n_streams,
            held=kept,
            by=all_of,
        ),
        Score(
            "marked texts, scored",
            marked + p.n_watched,
            x,
            T,
            drawn=lossy + 1 + streams,
            held=kept + 2 * max(n, p.n_long, p.n_watched),
            by=all_of,
        ),
        Score(
            "an asker's questions",
            ways * asked,
            8,
            p.n_asked,
            drawn=ways,
            held=kept + 2 * asked,
            by=all_of,
        ),
        Score(
            "light edits of one text",
            1 + p.n_edits,
            8,
            p.n_asked,
            keys=32,
            drawn=p.n_keys,
            held=kept + 3 * p.n_edits,
            by=all_of,
        ),
        Score(
            "texts reweighted, a gradient a token",
            2 * p.n_weighed,
            x,
            T,
            1,
            parts=T,
            held=kept + 2 * T,
            by=all_of | {"n_tokens": 2},
        ),
        Score(
            "texts at three lengths, for the card", 3 * n, x, T // 2, held=kept + 2 * n, by=all_of
        ),
    ]


@of("13")
def whose_text(p, setting: Setting) -> list[Step]:
    x, T, d = p.n_prompt, fitting(setting, 2 * p.n_prompt, p.n_tokens), setting.weight.matrix.size
    scan = fitting(setting, x, p.scan_tokens)
    writers, own, lengths = (
        p.n_writers,
        p.n_writers * p.n_prompts,
        len({m for m in p.lengths if m < T}) + 1,
    )
    n = own + p.n_human
    at_once = max(1, (256 << 20) // (8 * d))
    rounds, blocks = -(-n * lengths // at_once), -(-scan // p.block)
    nulls = min(p.n_null, p.n_null_texts)
    users = {"keys": writers, "by": {"n_writers": 1}}
    several = min(32, p.n_prompts)
    return [
        *solved(p, x, T),
        Step(
            "users' noises",
            0,
            0,
            0,
            keys=writers,
            drawn=p.n_base,
            held=2 * writers,
            by={"n_writers": 3},
        ),
        moved("texts of every user", own, x, T, keys=0, held=writers, by={"n_writers": 1}),
        Score(
            "texts named among all users",
            n,
            x,
            T,
            parts=lengths,
            drawn=rounds * p.n_base,
            held=writers + 2 * min(at_once, n) + 16,
        ),
        Score("users' texts under their own noises", own, x, T, parts=lengths, **users),
        Score(
            "human texts under codebooks of their own",
            p.n_human,
            x,
            T,
            drawn=p.n_human * p.books_per_text * p.small_base,
            held=writers + 16,
        ),
        Score("what it costs", 1, x, T, keys=1, drawn=p.n_base + p.n_fresh, held=writers + 16),
        Score(
            "several texts together",
            own + several,
            x,
            p.n_short,
            held=writers + 3 * several,
            by={"n_prompts": 3},
        ),
        moved(
            "marked spans",
            p.n_scan,
            x + scan // 2,
            max(p.block, round(p.share_marked * scan)),
            keys=p.n_scan,
            batch=1,
        ),
        Score(
            "the scan of marked texts",
            p.n_scan,
            x,
            scan,
            1,
            parts=1 + blocks,
            drawn=p.n_scan,
            held=writers + 2 * blocks,
        ),
        Score(
            "the scan of human texts",
            nulls,
            x,
            scan,
            1,
            parts=1 + blocks,
            drawn=p.n_null,
            held=writers + 2 * blocks,
        ),
    ]


@of("16")
def theory_in_full(p, setting: Setting) -> list[Step]:
    return []


@of("20")
def train_doclm(p, setting: Setting) -> list[Step]:
    return [
        Train(
            "training",
            max(1, p.steps * p.batch_tokens // p.short_context),
            0,
            p.short_context,
            max(1, p.batch_tokens // p.short_context),
        ),
        (
            Read("held-out pages", 4 * p.eval_pages, 0, p.context, 8)
            if p.eval_pages < 10_000
            else Read("held-out pages", 4_000, 0, p.context, 8)
        ),
    ]
