"""BLEU and chrF are sacreBLEU's; the test of a difference knows ties, few lines and many."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import sacrebleu

from headwise.core.errors import HeadwiseError
from headwise.core.qualities import BLEU, CHRF, Number, QualityMeasure
from headwise.models.decoding import bleu
from headwise.models.decoding.bleu import translation_answers

WORDS = [
    "the",
    "a",
    "red",
    "blue",
    "old",
    "small",
    "cat",
    "dog",
    "house",
    "tree",
    "man",
    "sees",
    "likes",
    "eats",
    "near",
]


def corpus(lines: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(6, 16))) + "." for _ in range(lines)]


def worsened(references: list[str], share: float, seed: int = 1) -> list[str]:
    """Every word is another one with this chance."""
    random = np.random.default_rng(seed)
    return [
        " ".join(str(random.choice(WORDS)) if random.random() < share else w for w in r.split())
        for r in references
    ]


REFERENCES = corpus(200)
GOOD, BAD = worsened(REFERENCES, 0.2), worsened(REFERENCES, 0.4, seed=2)


def change(system: list[str], baseline: list[str], references: list[str]) -> Number:
    return translation_answers([system, baseline], references).change(0, 1)


class TestQuality:
    def test_scores_and_signatures_are_sacrebleus_own(self) -> None:
        answers = translation_answers([BAD, GOOD], REFERENCES, (BLEU, CHRF))
        assert answers.value(1) == sacrebleu.corpus_bleu(GOOD, [REFERENCES]).score
        chrf = answers.by(CHRF).number(1)
        assert chrf.value == sacrebleu.corpus_chrf(GOOD, [REFERENCES]).score
        for quality, metric in ((BLEU, sacrebleu.BLEU()), (CHRF, sacrebleu.CHRF())):
            metric.corpus_score(GOOD, [REFERENCES])
            assert answers.made[quality] == str(metric.get_signature())
        assert "case:mixed" in answers.made[BLEU] and "tok:13a" in answers.made[BLEU]
        assert "nc:6" in answers.made[CHRF]

    @pytest.mark.parametrize(
        ("quality", "metric"), [(BLEU, sacrebleu.BLEU()), (CHRF, sacrebleu.CHRF())]
    )
    def test_the_interval_is_that_of_sacrebleus_bootstrap(
        self, quality: QualityMeasure, metric: Any
    ) -> None:
        """Within the noise of 1,000 resamples."""
        found = translation_answers([GOOD], REFERENCES, (BLEU, CHRF)).by(quality).number()
        theirs = metric.corpus_score(GOOD, [REFERENCES], n_bootstrap=1000)
        assert found.value is not None and found.low is not None and found.high is not None
        assert found.low < found.value < found.high
        assert (found.high - found.low) / 2 == pytest.approx(theirs._ci, rel=0.1)
        assert (found.high + found.low) / 2 == pytest.approx(
            theirs._mean, abs=0.1 * float(theirs._ci)
        )

    def test_a_perfect_and_an_empty_translation(self) -> None:
        answers = translation_answers(
            [REFERENCES, [""] * len(REFERENCES)], REFERENCES, (BLEU, CHRF)
        )
        for quality in (BLEU, CHRF):
            perfect, empty = (answers.by(quality).number(model) for model in range(2))
            assert perfect.high == perfect.value == pytest.approx(100) and 98 < perfect.low < 99
            assert empty.value == empty.low == 0 and 1 < empty.high < 2

    @pytest.mark.parametrize(("lines", "references"), [(0, 0), (0, 3), (3, 2), (2, 3)])
    def test_what_cannot_be_compared_is_refused(self, lines: int, references: int) -> None:
        right = REFERENCES[:references]
        for systems in ([REFERENCES[:lines]], [right, REFERENCES[:lines]]):
            with pytest.raises(
                HeadwiseError, match=rf"{lines} translations .* with {references} references"
            ):
                translation_answers(systems, right)


class TestDifference:
    def test_identical_output_is_no_difference(self) -> None:
        """sacreBLEU's own paired bootstrap gives it p = 0.001."""
        found = change(GOOD, list(GOOD), REFERENCES)
        assert (found.value, found.p) == (0, 1)
        assert (
            found.low is not None and found.high is not None and -2 < found.low < 0 < found.high < 2
        )

    def test_a_clearly_better_system(self) -> None:
        found, back = (
            change(GOOD, BAD, REFERENCES),
            change(BAD, GOOD, REFERENCES),
        )
        expected = (
            sacrebleu.corpus_bleu(GOOD, [REFERENCES]).score
            - sacrebleu.corpus_bleu(BAD, [REFERENCES]).score
        )
        assert found.value == pytest.approx(expected) and 0 < found.low < found.value < found.high
        assert 2 / 1001 < found.p < 2.5 / 1001  # the least that 1,000 resamples can say
        assert (
            back.value == -found.value
            and back.p == found.p
            and back.low == pytest.approx(-found.high)
        )

    def test_two_systems_that_are_equally_good(self) -> None:
        """Half the lines of each are the other's: neither is better but by chance, and the interval holds 0."""
        one = [a if i % 2 else b for i, (a, b) in enumerate(zip(GOOD, BAD, strict=True))]
        two = [b if i % 2 else a for i, (a, b) in enumerate(zip(GOOD, BAD, strict=True))]
        found = change(one, two, REFERENCES)
        assert found.p > 0.05 and found.low < 0 < found.high

    def test_chance_rejects_as_often_as_it_should(self) -> None:
        """Where lines are dealt out by chance, p is below 0.1 in about a tenth of all cases."""
        random, small = np.random.default_rng(0), 60
        ps = []
        for _ in range(20):
            deal = random.random(small) < 0.5
            one = [a if d else b for a, b, d in zip(GOOD, BAD, deal, strict=False)]
            two = [b if d else a for a, b, d in zip(GOOD, BAD, deal, strict=False)]
            ps.append(change(one, two, REFERENCES[:small]).p)
        assert np.mean(np.array(ps) < 0.1) <= 0.3 and np.mean(np.array(ps) > 0.5) >= 0.25

    def test_one_differing_line_says_nothing(self) -> None:
        """Swapped, it would say the opposite as loudly."""
        system = [*REFERENCES[:3], "something else.", *REFERENCES[4:]]
        found = change(system, REFERENCES, REFERENCES)
        assert found.value < 0 and found.p == 1

    @pytest.mark.parametrize("lines", [2, 4, 10])
    def test_few_differing_lines_are_tested_exactly(self, lines: int) -> None:
        """Every way of swapping them, written out with whole corpora. All worse is 1 of 2^n, and so is all better; but p
        is never below that of the interval."""
        system = worsened(REFERENCES[:lines], 0.6) + REFERENCES[lines:40]
        baseline, references = REFERENCES[:40], REFERENCES[:40]
        found = change(system, baseline, references)
        least = {2: 0.5, 4: 0.125, 10: 0.004245}  # 2 / 2^10 is 0.002
        assert found.p == pytest.approx(least[lines], rel=1e-3)
        if lines <= 4:
            values = []
            for swaps in product((False, True), repeat=lines):
                one, two = list(system), list(baseline)
                for i in range(lines):
                    if swaps[i]:
                        one[i], two[i] = two[i], one[i]
                values.append(
                    sacrebleu.corpus_bleu(one, [references]).score
                    - sacrebleu.corpus_bleu(two, [references]).score
                )
            assert found.value == pytest.approx(values[0])
            assert found.p == np.mean([abs(value) >= abs(values[0]) - 1e-9 for value in values])

    def test_lines_that_differ_without_a_difference_in_bleu(self) -> None:
        """Two unlike mistakes of the same size, in few lines and in many."""
        for lines in (3, 40):
            one = [f"wrong {line}" for line in REFERENCES[:lines]] + REFERENCES[lines:100]
            two = [f"false {line}" for line in REFERENCES[:lines]] + REFERENCES[lines:100]
            found = change(one, two, REFERENCES[:100])
            assert (found.value, found.p) == (0, 1)


CHINESE = [
    "这只老猫睡在旧沙发上。",
    "今天整个城市都在下雨。",
    "两只小鸟在一棵绿色的树上唱歌，他们用 PyTorch。",
]
JAPANESE = [
    "古いソファーの上で猫が眠っている。",
    "今日は町中で雨が降っています。",
    "木の上で二羽の小さな鳥が歌う。",
]
THAI = ["แมวแก่นอนอยู่บนโซฟาเก่า", "วันนี้ฝนตกทั้งเมือง", "นกน้อยสองตัวร้องเพลงบนต้นไม้"]
KHMER = ["ឆ្មាចាស់កំពុងដេកលើសាឡុង", "ថ្ងៃនេះមានភ្លៀងធ្លាក់ពេញទីក្រុង"]
KOREAN = ["늙은 고양이가 낡은 소파 위에서 잔다.", "오늘은 온 도시에 비가 내린다."]
RUSSIAN = ["Старая кошка спит на старом диване.", "Сегодня во всём городе идёт дождь."]
NAMES = ["The film 千と千尋の神隠し was seen by everybody in this old house.", *REFERENCES[:5]]


class TestScripts:
    @pytest.mark.parametrize(
        ("references", "tokenize"),
        [
            (CHINESE, "zh"),
            (THAI, "char"),
            (KHMER, "char"),
            (KOREAN, "13a"),
            (RUSSIAN, "13a"),
            (NAMES, "13a"),
            (REFERENCES, "13a"),
        ],
    )
    def test_bleu_is_sacrebleus_for_the_script_of_the_references(
        self, references: list[str], tokenize: str
    ) -> None:
        worse = [references[0][: -len(references[0]) // 3], *references[1:]]
        answers = translation_answers([references, worse], references)
        assert f"tok:{tokenize}|" in answers.made[BLEU]
        for model, lines in enumerate((references, worse)):
            theirs = sacrebleu.corpus_bleu(lines, [references], tokenize=tokenize)
            assert answers.value(model) == theirs.score
        assert answers.value(0) == pytest.approx(100) and answers.value(1) > 20

    @pytest.mark.parametrize("has", [True, False])
    def test_japanese_is_parted_by_mecab_where_it_is_installed(
        self, has: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bleu, "has_mecab", lambda: has)
        bleu.tokenizer_name.cache_clear()
        assert bleu.tokenizer_name(tuple(JAPANESE)) == ("ja-mecab" if has else "char")
        bleu.tokenizer_name.cache_clear()
        monkeypatch.undo()
        answers = translation_answers([JAPANESE], JAPANESE)
        assert answers.value() == pytest.approx(100) and "tok:13a" not in answers.made[BLEU]

    def test_references_without_4_grams_are_refused(self) -> None:
        words = ["a cat", "the old dog", "house"]
        with pytest.raises(
            HeadwiseError, match=r"None of the 3 references has 4 tokens \(tok:13a\)"
        ):
            translation_answers([words], words)
