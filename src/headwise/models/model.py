"""The model class for users: a transformers model with its tokenizer and its heads. `translate`, `without`, `save`.

A pruned model's folder contains `config.json` with the layout of kept heads, `model.safetensors`, and the tokenizer
(docs/layout.md); `loading.py` reads it.
"""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from transformers import (
    PreTrainedModel,
)

from headwise.core.errors import HeadwiseError, NoSuchName, called_as, few_names, shown_value
from headwise.core.folders import MODEL, Folder, as_path, writing
from headwise.core.grid import HeadGrid
from headwise.core.heads import Head, HeadMap, Kind, Named, Site, describe
from headwise.core.layout import HeadMask
from headwise.core.options import Engine, Search
from headwise.core.progress import OnProgress, refuse_other_progress, silent, without_bars
from headwise.models.attention.backward import is_quantised
from headwise.models.attention.capture import keeping
from headwise.models.attention.configuration import configured_alignment_heads
from headwise.models.attention.discover import Discovery, discover, refuse_taken_apart
from headwise.models.attention.head_counts import config_has_heads, write_heads_to_config
from headwise.models.attention.offload import is_offloaded
from headwise.models.attention.removal import smaller_copy
from headwise.models.decoding.search_engines import translator_of
from headwise.models.decoding.translator import Translator, cut_note, endless_note, translate
from headwise.models.known_text import KnownText, write_known_texts
from headwise.models.languages import languages_of, settle_languages, warn_of_line_prefixes
from headwise.models.model_files import (
    PARTIAL,
    copy_siblings,
    explain_pruned,
    mark_sealed,
    refuse_other_models,
    replace_model,
)
from headwise.models.tasks import Task
from headwise.models.tasks.task_table import task_of
from headwise.models.vocabulary import warn_of_endless_targets

HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")  # of transformers 4
LEAST_SHARD = 2**26  # bytes in a file of an offloaded model, and so in memory while it is saved


# Names that people look for in a Model, and what to write in their place.
INSTEAD = {
    name: f"write hw.{name}(model, …)"
    for name in ("score", "prune", "evaluate", "effects", "roles", "export", "lab", "masked")
}
INSTEAD["prune_heads"] = "write model.without({layer: [heads]}), which gives a smaller model"


class Model:
    """A transformers model with its tokenizer and the map of its heads.

    layout: of a model that lost heads, which ones of the first model are left; None where all are. allow_partial: heads
    that headwise does not see are accepted (`discover`). source: the local folder it came from.
    """

    # A wrong call is answered with the right one, in place of Python's TypeError.
    @called_as(
        "hw.Model(model, tokenizer)",
        {"device": "move the model first, hw.Model(model.to('cuda'), …)"},
    )
    def __init__(
        self,
        hf: PreTrainedModel,
        tokenizer: Any = None,
        name: str = "",
        layout: HeadMask | None = None,
        allow_partial: bool = False,
        source: Path | None = None,
    ) -> None:
        if not isinstance(hf, PreTrainedModel):
            refuse_wrapped(hf)
            raise HeadwiseError(
                f"{shown_value(hf)} was given in place of a transformers model: give hw.Model(model, tokenizer), or load a "
                "folder or a hub id by hw.load."
            )
        if tokenizer is not None and not callable(tokenizer):
            raise HeadwiseError(
                f"{shown_value(tokenizer)} was given in place of a tokenizer: give what AutoTokenizer loads."
            )
        self.hf = hf.eval()
        self.tokenizer = tokenizer
        self.name = name or str(hf.config.name_or_path) or type(hf).__name__
        self.layout = layout
        self.source = source
        # Texts on which heads were chosen or weights fitted; a smaller model inherits them.
        self.known_texts: tuple[KnownText, ...] = ()
        # Two small forwards: after this line every head has an address.
        self.discovery: Discovery = discover(hf, allow_partial)
        settle_languages(hf, tokenizer, self.name)
        warn_of_line_prefixes(hf, tokenizer, self.name)
        warn_of_endless_targets(hf, tokenizer, self.name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the transformers model answers, `model.hf(…)`: it reads tensors, as its tokenizer makes them."""
        self.refuse_text(*inputs)
        self.refuse_head_masks(named)
        return self.hf(*inputs, **named)

    def generate(self, *inputs: Any, **named: Any) -> Any:
        """What the transformers model writes, `model.hf.generate(…)`: it reads tensors, as its tokenizer makes them."""
        self.refuse_text(*inputs)
        self.refuse_head_masks(named)
        return self.hf.generate(*inputs, **named)

    if not TYPE_CHECKING:  # which would take any name for one that a Model has

        def __getattr__(self, name: str) -> Any:
            if isinstance(getattr(type(self), name, None), property):
                return object.__getattribute__(self, name)  # which raises its own error again
            hint = INSTEAD.get(name, "")
            # `hf` is not there yet while `__init__` runs.
            if not name.startswith("_") and not hint and hasattr(vars(self).get("hf"), name):
                hint = f"that of the transformers model is model.hf.{name}"
            raise NoSuchName(f"A Model has no {name}{': ' * bool(hint)}{hint}.")

    def refuse_text(self, *inputs: Any) -> None:
        """Raise HeadwiseError for text in place of tensors."""
        first = inputs[0] if inputs else None
        sentences = first if isinstance(first, list | tuple) else [first]
        if any(isinstance(each, str) for each in sentences):
            raise HeadwiseError(
                f"{self.name} was given {shown_value(first)}, and reads tensors: give "
                "**model.tokenizer('A sentence.', return_tensors='pt')."
            )

    def refuse_head_masks(self, named: Mapping[str, Any]) -> None:
        """Raise HeadwiseError for the masks of heads that transformers took before version 5: now it ignores them."""
        given = [name for name in HEAD_MASKS if named.get(name) is not None]
        if given:
            raise HeadwiseError(
                f"{self.name} was given {given[0]}, which transformers no longer reads: switch heads off in a block, `with "
                "hw.masked(model, heads): …`."
            )

    def __repr__(self) -> str:
        facts = [
            type(self.hf).__name__,
            f"{self.heads.total} heads: {describe(self.heads)}",
            f"{self.parameters:,} parameters",
            languages_of(self.tokenizer),
        ]
        for kind, numbers in self.discovery.layer_numbers().items():
            facts.append(f"{kind} in its layers {', '.join(map(str, numbers))}")
        return f"Model({self.name!r}, {', '.join(filter(None, facts))})"

    def _repr_html_(self) -> str:
        return HeadGrid(self.heads, repr(self)).html()

    @property
    def heads(self) -> HeadMap:
        """The heads that it has, in its own numbers; `heads_left` has those of the first model."""
        return self.discovery.heads

    @property
    def heads_left(self) -> HeadMask:
        """The heads that are left, of those of the model that was pruned first: the layout, or all heads."""
        return HeadMask.full(self.heads) if self.layout is None else self.layout

    @property
    def is_stock(self) -> bool:
        """Whether `from_pretrained` of transformers loads the model: it is whole, or all layers have lost equally many
        heads and its configuration can say so."""
        return self.layout is None or config_has_heads(self.hf.config, self.layout)

    @property
    def task(self) -> Task:
        """What the model is for. A new object at each call: the tokenizer may be set, and weights may move."""
        return task_of(self.hf, self.tokenizer, self.discovery, self.name, self.source)

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(p.numel() for p in unique_parameters(self.hf))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, tied ones counted once."""
        return sum(p.numel() * p.element_size() for p in unique_parameters(self.hf))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key/value cache per token, in the type of the weights, as transformers keeps it; an upper bound
        for models with sliding windows, whose layers keep only the last tokens (`cache_size`). For encoder-decoders the
        sum for a target token (`decoder-self`) and a source token (`cross`); 0 for encoders, which have no cache."""
        return sum(self.cache_by_kind.values())

    @property
    def cache_by_kind(self) -> dict[Kind, int]:
        """`cache_bytes` of each kind."""
        kinds = [kind for kind in self.heads.kinds if kind != "encoder-self"]
        return {kind: self._cache_bytes_of(kind, 1) for kind in kinds}

    def cache_size(self, tokens: int, source: int = 0) -> int:
        """Bytes of the key/value cache of one text of so many tokens, in the type of the weights.

        For encoder-decoders `tokens` is the length of the target, `source` that of the source.
        """
        return self._cache_bytes_of("decoder-self", tokens) + self._cache_bytes_of("cross", source)

    def _cache_bytes_of(self, kind: Kind, tokens: int) -> int:
        """Bytes that the layers of a kind keep of so many tokens."""
        layers = self.discovery.cached.get(kind, [])
        # Keys and values of all layers; a sliding layer keeps its last tokens only.
        numbers = sum(layer.size(tokens) for layer in layers)
        return numbers * int(self.hf.dtype.itemsize)

    @property
    def alignment_heads(self) -> list[Head]:
        """The heads whose attention says which source word, or which moment of speech, a token belongs to:
        `alignment_heads` of the generation configuration, [[layer, head], …]. Empty where none are named."""
        return configured_alignment_heads(self.hf)

    @alignment_heads.setter
    def alignment_heads(self, heads: Sequence[Head]) -> None:
        kind = "cross" if self.hf.config.is_encoder_decoder else "decoder-self"
        for head in heads:
            if head not in self.heads or head.kind != kind:
                raise HeadwiseError(
                    f"{head} cannot align: it is none of the {kind} heads of {describe(self.heads)}."
                )
        settings: Any = copy.copy(self.hf.generation_config)  # several models may share one
        if heads:
            settings.alignment_heads = [[head.layer, head.head] for head in heads]
            # With it set, transformers would drop what it does not know when it loads the settings.
            settings._from_model_config = False
        elif hasattr(settings, "alignment_heads"):
            del settings.alignment_heads
        self.hf.generation_config = settings

    def translate(
        self, sentences: Sequence[str], progress: OnProgress = silent, **search: Any
    ) -> list[str]:
        """Translate sentences by beam search; options of `Search` by name. engine="ct2": with CTranslate2.

        Of a sentence longer than the model's positions only the beginning is translated: a warning says so.
        """
        if isinstance(sentences, str):
            raise HeadwiseError(
                "translate was given one string: give a list of sentences, such as ['Hello.']."
            )
        wrong = [sentence for sentence in sentences if not isinstance(sentence, str)]
        if wrong:
            raise HeadwiseError(
                f"translate was given {shown_value(wrong[0])} in place of a sentence: give a list of strings."
            )
        refuse_other_progress(progress)
        if not self.hf.can_generate() or not self.hf.config.is_encoder_decoder:
            raise HeadwiseError(
                f"{self.name} is a {type(self.hf).__name__}, which does not translate: give an encoder-decoder model."
            )
        if self.task.reads_audio:
            raise HeadwiseError(
                f"{self.name} is {self.task.noun}, which reads no sentences: give an encoder-decoder of text."
            )
        if self.tokenizer is None:
            raise HeadwiseError(
                f"{self.name} has no tokenizer, which translating needs: put one into its folder."
            )
        options = Search(**search)
        translator = self.translator(options.engine)
        translations, cost = translate(translator, sentences, options, progress)
        if cut := cost["cut"]:
            where = f" (number {few_names([str(place + 1) for place in cut])})"
            note = cut_note(len(cut), len(sentences), translator.longest, where)
            warnings.warn(note, stacklevel=2)
        if endless := cost["endless"]:
            where = few_names([str(place + 1) for place in endless])
            note = endless_note(len(endless), len(sentences))
            warnings.warn(f"{note} (number {where}).", stacklevel=2)
        return translations

    def translator(self, engine: Engine = "transformers") -> Translator:
        """What translates with this model in an engine, for many calls. Raises HeadwiseError where the engine is not
        installed or cannot run the model."""
        return translator_of(self.hf, self.tokenizer, self.discovery, engine)

    @called_as("model.without(['L0H1'])")
    def without(self, heads: Named, grow: bool = False) -> Model:
        """A smaller model, from which some heads are gone, as `HeadMap.named` knows them. All else is as in `only`."""
        return self._cut(kept_without(self.heads, heads, "model.only(mask)"), grow)

    @called_as("model.only(mask)")
    def only(self, mask: HeadMask, grow: bool = False) -> Model:
        """A smaller model, in which the heads of a mask stay and all others are gone.

        The mask is in the numbers of the heads that this model has now.
        The smaller model has weights of its own, so a change of one model does not reach the other, and memory holds
        both. To keep only the smaller one, drop the other (`model = model.only(mask)`).
        grow: where key/value heads would be copied, so that the key/value cache or the weights grow, warn; else raise
        HeadwiseError.
        """
        require_mask(mask, "model.without(heads)")
        return self._cut(mask, grow)

    def _cut(self, mask: HeadMask, grow: bool) -> Model:
        # The layout is in numbers of the first model, the mask in those of this one.
        layout = mask if self.layout is None else composed_layout(self.layout, mask)
        refuse_reparametrised(self.hf)
        hf: Any = smaller_copy(self.hf, self.discovery, mask)
        # Before `Model`, whose discovery reads it: how many heads the model declares. Those are only heads that were seen,
        # so none can be missing, and `allow_partial` is not asked for again.
        hf.config.headwise_layout = layout.to_json()
        # Discovers its heads again: what is counted now is what was really left.
        smaller = Model(hf, self.tokenizer, self.name, layout, source=self.source)
        write_heads_to_config(hf, smaller.discovery, layout)
        smaller.known_texts = self.known_texts
        if self.alignment_heads:
            smaller.alignment_heads = renumbered(self.alignment_heads, mask)
        increase = size_increase(self, smaller)
        if increase:
            if not grow:
                raise HeadwiseError(
                    f"{increase} Keep equally many query heads per key/value head, or give grow=True."
                )
            # Who called `without` or `only`: `called_as` adds a frame.
            warnings.warn(increase, stacklevel=4)
        return smaller

    @called_as("model.save('my-folder')")
    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder that `load` reads.

        Other files in the folder stay. Raises HeadwiseError when that would mix two models: for a model file that
        `save` did not write, or that was changed since. The files that make a folder a model of sentence-transformers,
        the README and the licence are copied from the folder that the model came from. A killed `save` leaves the old
        model, or a folder that `load` refuses and another `save` mends.
        """
        refuse_reparametrised(self.hf)
        folder = as_path(folder)
        home = Folder(folder, MODEL)
        refuse_other_models(home)
        is_new = not folder.exists()
        # Everything is written beside the old model, and moved when it is whole.
        partial = folder / PARTIAL
        try:
            with writing(folder, SafetensorError), without_bars():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                size: int | str = "1TB"  # one file
                if is_offloaded(self.hf):
                    # A shard is in memory while it is written, so it is no larger than it must be.
                    largest = max(p.numel() * p.element_size() for p in self.hf.parameters())
                    size = max(LEAST_SHARD, largest)
                    # Transformers asks this attribute whether a model is offloaded.
                    vars(self.hf).setdefault("hf_device_map", {"": "disk"})
                # The warning is about memory, and a shard fits.
                with warnings.catch_warnings(action="ignore"):
                    # An uneven model is read by its names in the model, not by those in the hub's files.
                    self.hf.save_pretrained(
                        partial, max_shard_size=size, save_original_format=self.is_stock
                    )
                # config.json says that a record belongs beside it, so that one that was lost is noticed.
                mark_sealed(partial)
                write_known_texts(partial, self.known_texts)
                if self.tokenizer is not None:
                    self.tokenizer.save_pretrained(partial)
                if self.source is not None:
                    copy_siblings(self.source, partial)
                if not self.is_stock:
                    explain_pruned(partial, folder.absolute().name)
                replace_model(home, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            # Nothing was written: a failed `save` leaves no empty folder behind.
            if is_new and folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
        return folder


def refuse_wrapped(given: Any) -> None:
    """Raise HeadwiseError for a model inside something else, with the way to the model itself."""
    if isinstance(getattr(given, "_orig_mod", None), PreTrainedModel):
        raise HeadwiseError(
            "torch.compile gives a wrapper, whose heads cannot be seen: give the model itself (compiled._orig_mod), or "
            "compile it in place with model.compile()."
        )
    if hasattr(given, "peft_config") and hasattr(given, "get_base_model"):
        raise HeadwiseError(
            f"{type(given).__name__} is a model with adapters of PEFT: give what its merge_and_unload() returns, a plain "
            "model with the adapters in its weights."
        )
    if isinstance(given, nn.Module):
        refuse_taken_apart(given)
    # DataParallel calls it `module`; many wrappers call it `model`.
    inner = getattr(given, "module", None) or getattr(given, "model", None)
    if isinstance(inner, PreTrainedModel):
        where = "module" if isinstance(getattr(given, "module", None), PreTrainedModel) else "model"
        raise HeadwiseError(
            f"{type(given).__name__} holds the model: give that itself (.{where}), with its tokenizer."
        )


def refuse_reparametrised(hf: nn.Module) -> None:
    """Raise HeadwiseError for weights that are computed from others at each forward (torch.nn.utils.prune, parametrize),
    and for torch's modules of integers: cut or saved, they would be other weights."""
    for name, module in hf.named_modules():
        hooks = module._forward_pre_hooks.values()
        if is_parametrized(module) or any(isinstance(hook, BasePruningMethod) for hook in hooks):
            raise HeadwiseError(
                f"The weights of {name} are computed from others at each forward (torch.nn.utils): make them permanent "
                "first, by prune.remove or parametrize.remove_parametrizations."
            )
        if is_quantised(module):
            raise HeadwiseError(
                f"{name} holds integers ({type(module).__module__}), which can be neither cut nor saved: remove heads "
                "from the model before it is quantised."
            )


def unique_parameters(hf: PreTrainedModel) -> Iterator[nn.Parameter]:
    """The weights of a model. Tied ones come once; offloaded, they are several parameters."""
    # On the meta device there is nothing to share, so transformers' table says which are tied.
    # In memory tied weights are one parameter, which comes once by itself.
    tied = getattr(hf, "all_tied_weights_keys", None) or {} if is_offloaded(hf) else {}
    return (parameter for name, parameter in hf.named_parameters() if name not in tied)


def size_increase(before: Model, after: Model) -> str:
    """A sentence where removal makes the key/value cache or the weights larger, else nothing."""
    for what, old, new in (
        ("key/value cache", before.cache_bytes, after.cache_bytes),
        ("weights", before.weight_bytes, after.weight_bytes),
    ):
        if new > old:
            unit = " per token" if what == "key/value cache" else ""
            return (
                f"Without these heads the {what} of {before.name} would grow from {old:,} to {new:,} bytes{unit} "
                f"({new / old:.2f} times), because groups of different sizes need copies of key/value heads."
            )
    return ""


@called_as("with hw.masked(model, ['encoder-self/0/1']): …")
@contextmanager
def masked(
    model: Model | PreTrainedModel, heads: Named = None, *, only: HeadMask | None = None
) -> Iterator[HeadMask]:
    """A block in which some heads of a model are off: their outputs are zero (Michel et al. 2019, section 2.3), as with the
    `head_mask` that transformers 5 removed. It holds for all that runs the model in it: a forward, `generate`, a pipeline,
    a Trainer. Gives the mask of the heads that are on.

    model: a `Model`, or a plain transformers model, whose heads are found first (two small forwards). heads: those that
    are off, as `HeadMap.named` knows them. only: in place of them a mask, whose heads alone stay on. Raises HeadwiseError
    for heads that the model does not have.
    """
    if (heads is None) == (only is None):
        raise HeadwiseError(
            "masked needs heads: write with hw.masked(model, ['encoder-self/0/1']): …, or give only, a mask of those that "
            "stay on, in place of them."
        )
    if isinstance(model, Model):
        hf, discovery = model.hf, model.discovery
    elif isinstance(model, PreTrainedModel):
        hf, discovery = model, discover(model)
    else:
        refuse_wrapped(model)
        raise HeadwiseError(
            f"hw.masked was given a {type(model).__name__}: give a transformers model, or what hw.load(…) made."
        )
    if only is None:
        only = kept_without(discovery.heads, heads, "hw.masked(model, only=mask)")
    require_mask(only, "hw.masked(model, heads)")
    with keeping(hf, discovery, only):
        yield only


def kept_without(every: HeadMap, heads: Named, for_masks: str) -> HeadMask:
    """The mask that is left without some heads. Raises HeadwiseError for a mask, which says the opposite: what stays.

    for_masks: the call that takes one."""
    if isinstance(heads, HeadMask):
        raise HeadwiseError(f"A mask says which heads stay, not which ones go: write {for_masks}.")
    return HeadMask.full(every).without(heads)


def require_mask(given: Any, for_heads: str) -> None:
    """Raise HeadwiseError for anything in place of a mask of the heads that stay. for_heads: the call that takes heads
    that go."""
    if not isinstance(given, HeadMask):
        raise HeadwiseError(
            f"{shown_value(given)} was given in place of a mask, an hw.HeadMask of the heads that stay: to name those that "
            f"go, write {for_heads}."
        )


def renumbered(heads: Sequence[Head], mask: HeadMask) -> list[Head]:
    """Some heads under the numbers that they have once others are removed; warns of those that are removed."""
    removed = [str(head) for head in heads if head not in mask.kept]
    if removed:
        warnings.warn(
            f"Alignment heads that are not in the smaller model: {', '.join(removed)}. Choose others by "
            "headwise align.",
            stacklevel=5,  # who called `without` or `only`
        )
    return [
        Head(head.kind, head.layer, mask.of(Site(head.kind, head.layer)).index(head.head))
        for head in heads
        if head in mask.kept
    ]


def composed_layout(before: HeadMask, after: HeadMask) -> HeadMask:
    """The layout of a model pruned twice, in the head numbers of the original model."""
    kept = (
        Head(kind, layer, before.of(Site(kind, layer))[head]) for kind, layer, head in after.kept
    )
    return HeadMask(before.heads, frozenset(kept))
