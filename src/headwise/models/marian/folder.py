"""Reading a folder of Marian: a model file, its vocabulary, and the configuration inside the file."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from sentencepiece import SentencePieceProcessor
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, MarianTokenizer

from headwise.core.errors import HeadwiseError
from headwise.core.options import DEEPEST
from headwise.models.marian import files as marian_files
from headwise.models.marian.names import (
    NO_PROJECTION,
    OUTPUT,
    TIED_LAYERS,
    embedding_names,
    embedding_places,
    entries,
    written_out,
)
from headwise.models.marian.network import SSRU, MarianToolkitConfig, MarianToolkitModel, sinusoids

# Marian's names of activations. Its gelu is x σ(1.702 x), and since EXACT_GELU the exact one.
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}
EXACT_GELU = (1, 12, 3)
# Since then keys and values of self-attention are normalised as queries are, in pre-norm.
NORMALISED_KEYS = (1, 11)
# The decoder layer, from 1 on, whose first head aligns words; LAST: the last.
GUIDED, LAST = "transformer-guided-alignment-layer", "last"
NO_POSITIONS = "transformer-disable-position-embeddings"
LONGEST = 512  # tokens
PADDING = "<pad>"
# The logit of a word that is never written; 16 bits hold it.
NEVER = -1e4
MARGIN = 64  # words that a matrix may have beyond its vocabulary: Marian rounds up
FEWEST_SHARED = 0.5  # of the pieces that a cutter makes, those that its vocabulary has at least
# What headwise does not read, by the toolkit's option: the value that it has without it. None, false, 0 and empty are
# all ways to say that an option is not used.
WITHOUT: dict[str, Any] = {
    "alibi": False,
    "factors-dim-emb": 0,
    "input-join-fields": False,
    "input-reorder": [],
    "input-types": [],
    "lemma-dependency": "",
    "lemma-dim-emb": 0,
    "right-left": False,
    "special-vocab": [],
    "transformer-attention-mask": "default",
    "transformer-decoder-ffn-depth": 2,
    "transformer-ffn-depth": 2,
    NO_PROJECTION: False,
    "transformer-pool": False,
    "transformer-rnn-projection": False,
    TIED_LAYERS: [],
    "transformer-train-positions": False,
    "ulr": False,
}
# Options that are true or false, and what headwise reads of them.
FLAGS = (
    NO_POSITIONS,
    "output-omit-bias",
    "tied-embeddings",
    "tied-embeddings-all",
    "tied-embeddings-src",
)
READ = {
    *FLAGS,
    GUIDED,
    "dec-cell",
    "dec-depth",
    "dim-emb",
    "enc-depth",
    "layer-normalization",
    "transformer-decoder-autoreg",
    "transformer-ffn-activation",
    "transformer-heads",
    "transformer-postprocess",
    "transformer-postprocess-emb",
    "transformer-postprocess-top",
    "transformer-preprocess",
    "type",
    "version",
}
# What changes no number here: of networks of other types, of training, of options in WITHOUT that are not used, of sizes
# that the matrices have. Three change nothing in Marian 1.12 either (findings/): no-affine, no-bias and
# train-position-embeddings; a file that lacked biases, or had positions, is refused by the names of its weights.
UNUSED = {
    "dec-cell-base-depth",
    "dec-cell-high-depth",
    "dim-rnn",
    "dim-vocabs",
    "embedding-fix-src",
    "embedding-fix-trg",
    "embedding-normalization",
    "embedding-vectors",
    "enc-cell",
    "enc-cell-depth",
    "enc-type",
    "factors-combine",
    "original-type",
    "separator-symbol",
    "skip",
    "transformer-aan-activation",
    "transformer-aan-depth",
    "transformer-aan-nogate",
    "transformer-alibi-shift",
    "transformer-alibi-trainable",
    "transformer-decoder-dim-ffn",
    "transformer-depth-scaling",
    "transformer-dim-aan",
    "transformer-dim-ffn",
    "transformer-no-affine",
    "transformer-no-bias",
    "transformer-train-position-embeddings",
    "ulr-dim-emb",
    "ulr-trainable-transformation",
}
UNUSED_KINDS = ("bert-", "char-", "comet-", "dropout-", "transformer-dropout")


def read_folder(file: Path) -> tuple[MarianToolkitModel, MarianToolkitTokenizer]:
    """A model and its tokenizer from a file of Marian and what stands beside it.

    Raises HeadwiseError for a model of another kind, for damage, and where the vocabulary is missing or another's.
    """
    arrays, options = written_out(*marian_files.read(file))
    sides = vocabularies(file)
    arrays, scales = without_scales(arrays)
    config = configuration(file, arrays, options)
    config.activation_scales = scales
    refuse_other_vocabularies(file, config, sides)
    config.eos_token_id = sides[1].numbers[sides[1].end]
    # Without the word for padding, which headwise adds.
    return filled(file, arrays, config), tokenizer(sides, config.vocab_size - 1)


def configuration_in(file: Path) -> MarianToolkitConfig:
    """The shape of a model in a file."""
    return configuration(file, *written_out(*marian_files.read(file)))


def configuration(
    file: Path, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]
) -> MarianToolkitConfig:
    """The shape of a model, from Marian's configuration and the sizes of its matrices."""
    refuse_other_networks(file, options)
    layers = {side: int(options[f"{side[:3]}-depth"]) for side in ("encoder", "decoder")}
    for side, depth in layers.items():
        if not 1 <= depth <= DEEPEST:
            raise HeadwiseError(
                f"The configuration in {file} has {depth} layers in the {side}: 1 to {DEEPEST} are possible."
            )
    names = [*embedding_names(options), *(f"{side}_l1_ffn_W1" for side in layers)]
    shapes = {name: arrays[name].shape for name in names if name in arrays}
    if absent := [name for name in names if name not in shapes]:
        raise lacks(file, absent)
    for name, shape in shapes.items():
        if len(shape) != 2:
            raise wrong_shape(file, name, shape, "a matrix")
    (source_words, width), (target_words, _), *inner = (shapes[name] for name in names)
    rows = max(source_words, target_words)
    # Embeddings are scaled by the root of the width that the configuration says.
    if width < 2 or width % 2 or options.get("dim-emb", width) != width:
        said = options.get("dim-emb", "an even number")
        raise wrong_shape(file, names[0], shapes[names[0]], f"a width of {said!s:.40}")
    heads = options.get("transformer-heads", 8)
    if type(heads) is not int or heads < 1 or width % heads:
        raise HeadwiseError(
            f"The configuration in {file} has {heads!r:.40} heads, which do not divide the width of {width} evenly."
        )
    autoreg = options.get("transformer-decoder-autoreg", "self-attention")
    tied_all = bool(options.get("tied-embeddings-all"))
    positions = not options.get(NO_POSITIONS)
    preprocess = operations(file, options, "transformer-preprocess", "", "dn")
    activation = options.get("transformer-ffn-activation", "swish")
    return MarianToolkitConfig(
        architectures=[MarianToolkitModel.__name__],
        preprocess=preprocess,
        preprocess_keys="n" in preprocess and made_since(file, options, NORMALISED_KEYS),
        postprocess=operations(file, options, "transformer-postprocess", "dan", "dan"),
        postprocess_emb=operations(file, options, "transformer-postprocess-emb", "d", "dn"),
        postprocess_top=operations(file, options, "transformer-postprocess-top", "", "dn"),
        positions=positions,
        decoder_autoreg=SSRU if autoreg == "rnn" else autoreg,
        source_words=source_words,
        target_words=target_words,
        toolkit={name: value for name, value in options.items() if is_plain(value)},
        vocab_size=rows + 1,
        decoder_vocab_size=rows + 1,
        d_model=width,
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner[0][1],
        decoder_ffn_dim=inner[1][1],
        activation_function="gelu"
        if activation == "gelu" and made_since(file, options, EXACT_GELU)
        else ACTIVATIONS[activation],
        # By √width, where positions are added.
        scale_embedding=positions,
        share_encoder_decoder_embeddings=tied_all,
        tie_word_embeddings=tied_all or bool(options.get("tied-embeddings")),
        max_position_embeddings=LONGEST,
        # A model as it is given: with dropout, further training harms it.
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=rows,
        decoder_start_token_id=rows,
        bos_token_id=None,
        forced_eos_token_id=None,
    )


def refuse_other_networks(file: Path, options: Mapping[str, Any]) -> None:
    """Raise HeadwiseError for a model of another kind than those that `MarianToolkitModel` computes."""
    kind = options.get("type")
    if kind != "transformer":
        raise HeadwiseError(
            f"{file} is a model of type {kind!r:.40}: of Marian's models headwise reads those of type transformer."
        )
    # What each decoder layer begins with; `rnn` is named by its cell.
    autoreg = options.get("transformer-decoder-autoreg", "self-attention")
    cell = options.get("dec-cell")
    if autoreg not in ("self-attention", "rnn") or (autoreg == "rnn" and cell != "ssru"):
        named = f"{autoreg} of {cell}" if autoreg == "rnn" else autoreg
        raise HeadwiseError(
            f"The decoder in {file} has {named!s:.60}: headwise reads self-attention and rnn of ssru."
        )
    activation = options.get("transformer-ffn-activation", "swish")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise HeadwiseError(
            f"{file} has the activation {activation!r:.40}: headwise reads {', '.join(ACTIVATIONS)}."
        )
    other = [name for name, usual in WITHOUT.items() if (options.get(name) or usual) != usual]
    if autoreg == "rnn" and options.get("layer-normalization"):
        other.append("layer-normalization")
    other += [name for name, value in options.items() if value and not is_known(name)]
    other += [name for name in FLAGS if options.get(name) not in (None, True, False)]
    if other:
        raise HeadwiseError(
            f"{file} was made with {other[0]!s:.60} = {options.get(other[0])!s:.40}, which headwise does not read."
        )
    for name in ("enc-depth", "dec-depth"):
        if type(options.get(name)) is not int:
            raise HeadwiseError(
                f"{file} does not say {name} in its configuration: save it with Marian again."
            )


def is_known(option: Any) -> bool:
    """Whether headwise knows what an option of the toolkit changes."""
    return isinstance(option, str) and (
        option in READ or option in UNUSED or option in WITHOUT or option.startswith(UNUSED_KINDS)
    )


def is_plain(value: Any) -> bool:
    """Whether a value of the toolkit's configuration is a text, a number, true, false or a list of these."""
    if isinstance(value, list):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, str | bool | int | float)


def made_since(file: Path, options: Mapping[str, Any], since: tuple[int, ...]) -> bool:
    """Whether the Marian that saved a file was of a version or a later one; files of before 2019 do not say it.

    Raises HeadwiseError where the version cannot be read: what the model computes depends on it.
    """
    said = options.get("version")
    if said is None:
        return False
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", str(said))
    if found is None:
        raise HeadwiseError(
            f"{file} was saved by Marian {said!s:.40}, and what its options mean depends on the version: set version in "
            f"its configuration, such as v1.{since[1]}.0."
        )
    return tuple(int(part or 0) for part in found.groups()) >= since


def operations(file: Path, options: Mapping[str, Any], name: str, usual: str, possible: str) -> str:
    """One of Marian's orders of dropout, adding and norm."""
    found = str(options.get(name, usual) or "")
    if not set(found) <= set(possible):
        raise HeadwiseError(
            f"{file} has {name} = {found!r:.40}: headwise reads the letters {', '.join(possible)} there."
        )
    return found


def without_scales(
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The matrices alone, and the scales of activations by the matrix that they belong to."""
    weights = {}
    scales = {}
    for name, array in arrays.items():
        if name.endswith(marian_files.SCALE):
            scales[name.removesuffix(marian_files.SCALE)] = float(array.flat[0])
        else:
            weights[name] = array
    return weights, scales


def filled(
    file: Path, arrays: Mapping[str, np.ndarray], config: MarianToolkitConfig
) -> MarianToolkitModel:
    """The model with the weights of a file.

    Raises HeadwiseError for weights that are missing, have another shape, or have no place.
    """
    with torch.device("meta"):
        hf = MarianToolkitModel(config)
    found = weights_in(file, arrays, config)
    positions = sinusoids(config.max_position_embeddings, config.d_model) * config.positions
    for side in ("encoder", "decoder"):
        found[f"model.{side}.embed_positions.weight"] = positions.clone()
    for name, expected in hf.state_dict().items():
        if found[name].shape != expected.shape:
            raise wrong_shape(file, name, found[name].shape, by(expected.shape))
    hf.load_state_dict(found, assign=True)
    hf.tie_weights()
    hf.generation_config = GenerationConfig(
        max_length=LONGEST,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        alignment_heads=guided_heads(config),
    )
    hf.eval()
    return hf


def guided_heads(config: MarianToolkitConfig) -> list[list[int]]:
    """The layer and number of the head whose attention Marian's engines take for the alignment of words, if there is one:
    the first of a decoder layer."""
    said = (config.toolkit or {}).get(GUIDED, LAST)
    layer = config.decoder_layers if said == LAST else int(said) if str(said).isdecimal() else 0
    return [[layer - 1, 0]] if 1 <= layer <= config.decoder_layers else []


def weights_in(
    file: Path, arrays: Mapping[str, np.ndarray], config: MarianToolkitConfig
) -> dict[str, Tensor]:
    """Every weight in a file by its name in transformers."""
    # As Marian wrote the output layer before 2019.
    if f"{OUTPUT}_W" in arrays:
        other = {name: array for name, array in arrays.items() if name != f"{OUTPUT}_W"}
        arrays = {**other, f"{OUTPUT}_Wt": arrays[f"{OUTPUT}_W"].T}
    words = embedding_places(config)
    named = {entry.theirs for entry in entries(config)}
    sizes = {theirs: (count, config.d_model) for theirs, count in words.values()}
    biased = not (config.toolkit or {}).get("output-omit-bias")
    if biased:
        sizes[f"{OUTPUT}_b"] = (1, config.target_words)
    named |= sizes.keys()
    missing = sorted(named - arrays.keys())
    if missing:
        raise lacks(file, missing)
    strangers = sorted(arrays.keys() - named)
    if strangers:
        some = ", ".join(name[:100] for name in strangers[:3])
        raise HeadwiseError(
            f"{file} has weights for which its configuration has no place ({some}): headwise does not "
            "read such a model."
        )

    for theirs, expected in sizes.items():
        if arrays[theirs].shape != expected:
            raise wrong_shape(file, theirs, arrays[theirs].shape, by(expected))

    found = {}
    for entry in entries(config):
        array = arrays[entry.theirs]
        found[entry.ours] = array.T if entry.transposed else array.reshape(-1)
    rows = config.vocab_size
    for ours, (theirs, count) in words.items():
        found[ours] = np.pad(arrays[theirs], ((0, rows - count), (0, 0)))
    bias = arrays[f"{OUTPUT}_b"] if biased else np.zeros((1, config.target_words))
    padding = rows - config.target_words
    found["final_logits_bias"] = np.pad(bias, ((0, 0), (0, padding)), constant_values=NEVER)
    return {
        name: torch.from_numpy(np.array(array, np.float32, order="C"))
        for name, array in found.items()
    }


def wrong_shape(file: Path, name: str, shape: Iterable[int], expected: str) -> HeadwiseError:
    return HeadwiseError(
        f"{file} is damaged: {name} is {by(shape) or 'one number'}, but its configuration asks for {expected}."
    )


def by(shape: Iterable[int]) -> str:
    """A shape in words: 16 × 24."""
    return " × ".join(map(str, shape))


def lacks(file: Path, names: list[str]) -> HeadwiseError:
    some = ", ".join(name[:100] for name in [*dict.fromkeys(names)][:3])
    return HeadwiseError(f"{file} lacks weights of its model ({some}): copy it again.")


@dataclass(frozen=True)
class Vocabulary:
    """The words of one side. numbers: those of its pieces, from `file`. cutter: the .spm that cuts text into pieces; in
    many models (OPUS-MT) it has other numbers. end, unknown: the pieces of these names. named: whether a configuration
    names the file.
    """

    file: Path
    numbers: Mapping[str, int]
    cutter: Path
    end: str = "</s>"
    unknown: str = "<unk>"
    named: bool = False


def vocabularies(file: Path) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target beside a model, which may be one: those that a configuration names
    (`vocabs`), or else the one .spm in the folder, or two whose names say the side."""
    named = marian_files.named_vocabularies(file)
    if named is None:
        source, target = side_files(file)
        return vocabulary(source, source), vocabulary(target, target)
    if all(path.suffix == ".spm" for path in named):
        source, target = named
        return vocabulary(source, source, True), vocabulary(target, target, True)
    source_cutter, target_cutter = side_files(file)
    return vocabulary(named[0], source_cutter, True), vocabulary(named[1], target_cutter, True)


def side_files(file: Path) -> tuple[Path, Path]:
    """The .spm of each side in a model's folder, by their names."""
    folder = file.parent
    found = sorted(folder.glob("*.spm"))
    if len(found) == 1:
        return found[0], found[0]
    for beginnings in (("source", "target"), ("src", "trg")):
        sides = [[path for path in found if path.name.startswith(side)] for side in beginnings]
        if all(len(side) == 1 for side in sides):
            return sides[0][0], sides[1][0]
    if not found:
        raise HeadwiseError(
            f"{folder} has no vocabulary (.spm): put the model's own beside {file.name}, as vocab.spm, or as "
            "source.spm and target.spm."
        )
    raise HeadwiseError(
        f"{folder} has {len(found)} vocabularies (.spm), and nothing says which is whose: call them source.spm and "
        "target.spm, or name them as vocabs in a .yml beside them."
    )


def vocabulary(file: Path, cutter: Path, named: bool = False) -> Vocabulary:
    """A vocabulary of SentencePiece, or one of Marian (.yml, .json), which numbers the pieces of a cutter."""
    pieces = pieces_of(cutter)
    if file == cutter:
        numbers = {pieces.id_to_piece(number): number for number in range(len(pieces))}
        end, unknown = (pieces.id_to_piece(pieces.eos_id()), pieces.id_to_piece(pieces.unk_id()))
        return Vocabulary(file, numbers, cutter, end, unknown, named)
    if file.suffix not in marian_files.NUMBERED:
        raise HeadwiseError(
            f"{file} is named as a vocabulary, and headwise reads those of SentencePiece (.spm) and of Marian (.yml, "
            ".json)."
        )
    vocabulary = Vocabulary(file, read_numbers(file), cutter, named=named)
    if lacking := [
        piece for piece in (vocabulary.end, vocabulary.unknown) if piece not in vocabulary.numbers
    ]:
        raise HeadwiseError(
            f"{file} has no piece {lacking[0]}, which every vocabulary of Marian has: copy it again."
        )
    share = np.mean([pieces.id_to_piece(each) in vocabulary.numbers for each in range(len(pieces))])
    if share < FEWEST_SHARED:
        raise HeadwiseError(
            f"{cutter} cuts text into other pieces than {file.name} has ({share:.0%} of its own are there): put the "
            "model's own .spm there."
        )
    return vocabulary


def read_numbers(file: Path) -> dict[str, int]:
    """The numbers of pieces in a vocabulary of Marian: `piece: number` a line, or JSON."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            found = json.loads(text)
        else:
            # All scalars as they are written: a piece `no` or `12` is no truth value and no number.
            found = yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        numbers = {str(piece): int(number) for piece, number in found.items()}
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        reason = " ".join(str(error).split())[:100]
        raise HeadwiseError(
            f"{file} is no vocabulary of Marian, piece and number a line ({reason}): copy it again."
        ) from None
    if len({*numbers.values()}) < len(numbers) or min(numbers.values(), default=-1) < 0:
        raise HeadwiseError(f"{file} has no number of its own for every piece: copy it again.")
    return numbers


def refuse_other_vocabularies(
    file: Path, config: MarianToolkitConfig, sides: tuple[Vocabulary, Vocabulary]
) -> None:
    """Raise HeadwiseError for a vocabulary with more pieces than the model has words, or with far fewer where nothing
    but its place says that it is the model's."""
    for side, rows in zip(sides, (config.source_words, config.target_words), strict=True):
        words = max(side.numbers.values()) + 1
        said = f"{side.file} has {words:,} pieces, the model in {file.name} {rows:,}"
        if words > rows or (words < rows - MARGIN and not side.named):
            raise HeadwiseError(
                f"{said}: put the model's own vocabulary there, and name it as vocabs in a .yml beside it."
            )
        if words < rows - MARGIN:
            warnings.warn(f"{said}: the others are never read or written.", stacklevel=2)


def pieces_of(file: Path) -> SentencePieceProcessor:
    """A vocabulary of SentencePiece."""
    try:
        return SentencePieceProcessor(str(file))
    except (OSError, RuntimeError) as error:
        raise HeadwiseError(
            f"{file} is no vocabulary of SentencePiece ({' '.join(str(error).split())[:100]}): copy it again."
        ) from None


class MarianToolkitTokenizer(MarianTokenizer):
    """transformers' tokenizer, in which a line begins with a language, `>>pt<<`, only where that is a word of the model
    (multilingual OPUS-MT); for other models of Marian it is letters."""

    def remove_language_code(self, text: str) -> tuple[list[str], str]:
        code, rest = super().remove_language_code(text)
        return (code, rest) if code and code[0] in self.current_encoder else ([], text)


AutoTokenizer.register(MarianToolkitConfig, MarianToolkitTokenizer)


def tokenizer(sides: tuple[Vocabulary, Vocabulary], rows: int) -> MarianToolkitTokenizer:
    """The tokenizer of a model with `rows` words and one for padding, from the vocabularies of source and target."""
    source, target = sides
    separate = source.file != target.file
    with tempfile.TemporaryDirectory() as scratch:
        files = []
        for name, side in (("source", source), ("target", target)):
            # A name for every row of the embeddings, so that the tokenizer has as many words as the model.
            unused = sorted({*range(rows)} - {*side.numbers.values()})
            numbers = {**side.numbers, **{unused_name(number): number for number in unused}}
            numbers[PADDING] = rows
            files.append(Path(scratch) / f"{name}.json")
            files[-1].write_text(json.dumps(numbers, ensure_ascii=False), encoding="utf-8")
        # It recommends sacremoses, which Marian does not use.
        with warnings.catch_warnings(action="ignore"):
            return MarianToolkitTokenizer(
                str(source.cutter),
                str(target.cutter),
                str(files[0]),
                str(files[1]) if separate else None,
                separate_vocabs=separate,
                eos_token=target.end,
                unk_token=target.unknown,
                pad_token=PADDING,
                model_max_length=LONGEST,
                # `</s>` in a text is letters.
                split_special_tokens=True,
            )


def unused_name(number: int) -> str:
    """What a word is called for which no vocabulary has a piece."""
    return f"<unused-{number}>"
