"""Load a model: whole, pruned, or of a finished study. What cannot be trusted is refused.

`from_pretrained` rejects layers of different shapes, so `load` builds the stock model, removes the other heads and
loads the weights (docs/layout.md).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeAlias

import torch
import transformers
from huggingface_hub import hf_hub_download, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D
from transformers.utils import is_peft_available

from headwise.core.errors import HeadwiseError, called_as, did_you_mean, few_names, shown_value
from headwise.core.folders import SUMS, Folder
from headwise.core.heads import Head, HeadMap, Kind, describe
from headwise.core.layout import HeadMask
from headwise.core.options import DEEPEST
from headwise.core.progress import without_bars
from headwise.data.lines import refuse_pointer
from headwise.models.attention.configuration import other_start
from headwise.models.attention.discover import discover
from headwise.models.attention.head_counts import config_has_heads, note_origins
from headwise.models.attention.offload import device_of, named_weights
from headwise.models.attention.rebuilt import drop_unused
from headwise.models.attention.removal import smaller_copy
from headwise.models.devices import usable
from headwise.models.generators import unchanged_generators
from headwise.models.known_text import read_known_texts
from headwise.models.marian.files import marian_file, packaged
from headwise.models.marian.folder import configuration_in, read_folder
from headwise.models.marian.network import MarianToolkitModel
from headwise.models.model import Model, refuse_wrapped
from headwise.models.model_files import (
    INDEX,
    MARK,
    folder_of,
    refuse_damage,
    weight_files,
    weights_folder,
)
from headwise.models.placement import (
    DeviceMap,
    fallback_device_map,
    full_device_map,
    meta_model,
    read_from,
    scratch,
    stored_weights,
)
from headwise.models.positions import sub_configs
from headwise.models.tasks import Task
from headwise.models.tasks.task_table import class_of_task

# Weights of BERT's other task, in files of its encoder: nothing here computes with them.
UNUSED = re.compile(r"(^|\.)(pooler|seq_relationship|sop_classifier)\.")

# What configurations call their number of layers.
LAYERS = (
    "num_hidden_layers",
    "encoder_layers",
    "decoder_layers",
    "num_layers",
    "num_decoder_layers",
    "n_layer",
    "n_layers",
)
HEAD_COUNTS = (
    "num_attention_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_heads",
)
SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
MANY_LAYERS = 100  # layers that are built without a look at the weights
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "source.spm")
# Files that tokenizers are made of, of whatever class.
OF_TOKENIZERS = ("*token*", "vocab*", "merges.txt", "*.model", "*.spm", "bpe.codes", "tekken.json")
MOST_SPECIAL = 1000  # words of a tokenizer that may all be special ones
FEWEST_WORDS = 2  # of one that can read: some are made with a piece for the blank alone
LARGEST_TOKENIZER = 150_000_000  # bytes; 262,000 words take 33 million
DTYPES = ("float32", "bfloat16", "float16")
# A configuration with so many more numbers than its files is damaged: building it could take all memory. Weights that
# are tied, or used by several layers, may be declared more often than they are stored.
HARMLESS = 10**8
OFTEN = 20
OWN_ATTENTION = (None, "eager", "sdpa")  # of torch


# A model is built with random weights before its own are loaded.
@unchanged_generators()
@without_bars()
@called_as(
    "hw.load('my-model', 'cuda')",
    {
        "tokenizer": "that of the folder is taken; a model that is loaded becomes hw.Model(model, tokenizer)"
    },
)
def load(
    spec: str | PathLike[str],
    device: str | torch.device = "cpu",
    allow_partial: bool = False,
    *,
    dtype: str | torch.dtype | None = None,
    device_map: DeviceMap | None = None,
) -> Model:
    """Load any transformers model, a model that headwise pruned, or the trained model of a finished study.

    spec: a local folder, of transformers or of Marian (`.npz`, `.bin`; docs/howto/marian.md), a hub id, or
    `firefox/en-pt`. device: cpu, cuda, mps, or `auto`, the best of these that is there. allow_partial: also load a model
    with heads that headwise does not see. dtype: the type of the weights (float32, bfloat16 or float16); by default as
    they were saved. device_map: where the weights are, for models that are larger than the device
    (docs/howto/big-models.md): `disk` loads each layer from its file when it runs; `auto` fills the devices, then the
    memory, and leaves the rest on disk; or a device by name of module, as transformers takes it. A model that does not
    fit is loaded in this way by itself, with a warning. Raises HeadwiseError for a missing or incomplete model,
    HeadsMissing for a model with heads that headwise does not see.
    """
    if isinstance(spec, PathLike):
        spec = Path(spec)
    if not isinstance(spec, str | Path):
        raise HeadwiseError(
            f"load was given a {type(spec).__name__}: give a folder or a hub id, or make hw.Model(model, tokenizer) of a "
            "model that is loaded."
        )
    device = usable(device)
    number_type = number_type_of(dtype)
    # home: what belongs to the model as a whole; path: where its weights are, which may be a folder inside.
    home = path = folder_of(spec)
    local = path.exists()
    source = str(path if local else spec)
    # A finished study: its trained model.
    name = str(spec) if path == Path(spec) or packaged(str(spec)) else source
    refuse_damage(path)  # before any library reads the files
    if local:
        path = weights_folder(path)
        source = str(path)
    marian = marian_file(path)
    if marian is not None:
        return load_marian(marian, name, device, number_type, device_map)
    try:
        refuse_code(source)
        config = config_of(source)
        layout = layout_of_config(source, config)
        # Of transformers 4, which cut heads by itself.
        cut = getattr(config, "pruned_heads", None)
        if layout is not None and not local:
            # Transformers would fetch a stock model's files; a pruned one is read here.
            home = path = fetched(source)
            local, source = True, str(path)
            refuse_damage(path)
        model_class = class_of_config(source, config)
        refuse_wrong_counts(source, config)
        if local:
            refuse_other_weights(path, config, model_class)
        if device_map is None and local and not cut:
            device_map = fallback_device_map(path, device, number_type)
        if cut:
            hf, layout = load_cut(source, path, config, model_class, number_type, cut)
        # Where all layers lost equally many heads, transformers builds them by itself.
        elif layout is None or config_has_heads(config, layout):
            devices = full_device_map(device_map, device, config, model_class)
            hf = load_whole(source, config, model_class, number_type, devices)
        else:
            offloaded = device if device_map else None
            # Uneven layers: no class of transformers can be built so.
            hf = load_pruned(path, config, model_class, layout, number_type, offloaded)
        warn_of_code(source, hf)
        if (path / "generation_config.json").exists():
            settings = GenerationConfig.from_pretrained(path)  # raises for a damaged one
            refuse_length(source, settings)
            if hf.can_generate():
                hf.generation_config = settings
        # A model of images may have a tokenizer or not: a folder shows it, a hub would be asked in vain.
        reads_text = has_tokenizer(path) if local else hf.main_input_name != "pixel_values"
        tokenizer = read_tokenizer(source) if reads_text else None
        refuse_unfit(source, hf, tokenizer)
        if device_map is None:  # else the hooks of Accelerate move what computes
            hf = hf.to(device)
    except HeadwiseError:
        raise
    except Exception as error:  # of transformers, safetensors or tokenizers, about the user's files
        raise unloadable(error, str(spec), path if local else None) from error
    model = Model(hf, tokenizer, name, layout, allow_partial, home if local else None)
    if local:
        model.known_texts = read_known_texts(home)
    if layout is not None:
        note_origins(model.discovery, layout)
    return model


def unloadable(error: Exception, spec: str, folder: Path | None) -> HeadwiseError:
    """A sentence for an error of another library about the user's files. folder: with them; None for a name of the hub."""
    # The usual cause of files that no library can read.
    for file in sorted(folder.iterdir()) if folder is not None else ():
        refuse_pointer(file)
    # Torch says that memory is short by a RuntimeError.
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return HeadwiseError(
            f"{spec} cannot be loaded: there is not enough memory ({end_of_sentence(error)}). Give --dtype bfloat16, "
            "or in Python device_map='disk'."
        )
    # Torch says at length how to run it.
    if isinstance(error, UnpicklingError):
        return HeadwiseError(
            f"The weights in {spec} are a pickled program, not tensors alone, and headwise runs none: load them where they "
            "were saved, and save the model by save_pretrained."
        )
    # Transformers advises this option, which would fill the layers with random weights.
    if "ignore_mismatched_sizes" in str(error):
        return HeadwiseError(
            f"The weights in {spec} do not fit its layout: some have other sizes than its configuration says. Copy or "
            "save it again."
        )
    is_not = f"'{spec}' is not a local folder, and not"
    remedy = "Correct the name, or give a folder."
    if folder is not None:
        is_not = f"{spec} is a folder, but not"
        remedy = "Copy or save it again, or correct its config.json."
        others = [file.name for file in sorted(folder.glob("*.safetensors"))]
        # transformers 5 reads PyTorch's alone.
        foreign = [
            name for name in ("tf_model.h5", "flax_model.msgpack") if (folder / name).exists()
        ]
        if foreign and "no file named" in str(error):
            remedy = (
                f"Its weights are {foreign[0]}, which transformers 5 does not read: load it with transformers 4 "
                "(from_tf or from_flax) and save it by save_pretrained."
            )
        if others and "no file named" in str(error):
            remedy = f"It has {few_names(others)}: rename that model.safetensors, or save the model again."
            if any(SHARD.search(name) for name in others):
                remedy = f"It has shards ({few_names(others)}), but not {INDEX}, which lists what is in each: copy it."
    if isinstance(error, ImportError):
        remedy = "Install what it needs, or give the model in another format."
    return HeadwiseError(
        f"{is_not} a complete model that transformers can load: {end_of_sentence(error).rstrip('.')}. {remedy}"
    )


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a file of a tokenizer."""
    return any(any(folder.glob(pattern)) for pattern in OF_TOKENIZERS)


def read_tokenizer(source: str) -> Any:
    """The tokenizer in a folder, or of a hub id. Raises HeadwiseError for files that transformers cannot read."""
    try:
        with warnings.catch_warnings():
            # Which would clean texts for training; MarianTokenizer uses it nowhere.
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
            return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except ImportError as error:
        raise HeadwiseError(
            f"The tokenizer in {source} needs another package: {end_of_sentence(error).rstrip('.')}."
        ) from error
    except Exception as error:  # of transformers or tokenizers, about the user's files
        for file in sorted(Path(source).glob("*")):
            refuse_pointer(file)
        raise HeadwiseError(
            f"transformers reads no tokenizer in {source} ({end_of_sentence(error).rstrip('.')}): copy its files there, "
            "tokenizer.json, or its vocabulary with what goes with it (vocab.json and merges.txt)."
        ) from error


def refuse_wordless(source: str, tokenizer: Any) -> None:
    """Raise HeadwiseError for a tokenizer without its vocabulary: transformers makes one that reads words as nothing."""
    folder = Path(source)
    files = [*getattr(tokenizer, "vocab_files_names", {}).values()]
    missing = [name for name in files if folder.is_dir() and not (folder / name).is_file()]
    words = MOST_SPECIAL
    if len(tokenizer) < MOST_SPECIAL:
        special = {*tokenizer.added_tokens_encoder, *tokenizer.all_special_tokens}
        # Counted only where there are few: it takes its time.
        words = len({*tokenizer.get_vocab()} - special)
    if words < FEWEST_WORDS:
        lost = f": {' or '.join(missing)} is missing" if missing else ""
        raise HeadwiseError(
            f"The tokenizer in {source} has no words{lost}. Copy the tokenizer of the model there."
        )


AnyModel: TypeAlias = Model | PreTrainedModel | str | PathLike[str]  # as `as_model` takes it


def as_model(given: AnyModel) -> Model:
    """A model, of what a user has: one that is loaded, its name as `load` takes it, or a plain transformers model, with
    the tokenizer that is beside its weights on this machine. Raises HeadwiseError for anything else."""
    if isinstance(given, Model):
        return given
    if isinstance(given, str | PathLike):
        return load(given)
    if not isinstance(given, PreTrainedModel):
        refuse_wrapped(given)
        raise HeadwiseError(
            f"{shown_value(given)} was given in place of a model: give what hw.load(…) makes, a folder, a hub id, or "
            "a transformers model."
        )
    source = str(given.config.name_or_path)
    tokenizer = None
    if given.main_input_name != "pixel_values":
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                source, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # of transformers, tokenizers or the hub
            raise HeadwiseError(
                f"A {type(given).__name__} was given, and no tokenizer is beside its weights: give hw.Model(model, "
                "tokenizer)."
            ) from error
        refuse_unfit(source, given, tokenizer)
    return Model(given, tokenizer)


def load_marian(
    file: Path, name: str, device: str, dtype: torch.dtype | None, device_map: DeviceMap | None
) -> Model:
    """A model from a file of Marian and its vocabulary."""
    if device_map is not None:
        raise HeadwiseError(
            f"A device map was given for {name}, but models of Marian are loaded whole: leave it out."
        )
    hf, tokenizer = read_folder(file)
    refuse_unfit(str(file), hf, tokenizer)
    return Model(freeze_as_built(hf).to(device, dtype), tokenizer, name, source=file.parent)


def task_class(spec: str | Path) -> type[Task]:
    """The class of a model's task, from its configuration alone: no weights are read.

    Raises HeadwiseError for a model that `load` would refuse for its configuration.
    """
    path = folder_of(spec)
    if path.exists():
        path = weights_folder(path)
    source = str(path if path.exists() else spec)
    marian = marian_file(path)
    try:
        if marian is None:
            refuse_code(source)
        config = config_of(source) if marian is None else configuration_in(marian)
        model_class = class_of_config(source, config)
        refuse_wrong_counts(source, config)
        if path.exists():
            refuse_other_weights(path, config, model_class)
        hf = shell_of(model_class, config)
    except HeadwiseError:
        raise
    except Exception as error:  # of transformers or torch, about the user's file
        raise HeadwiseError(
            f"{spec} has no configuration that transformers can load: {end_of_sentence(error)}"
        ) from error
    # Without weights there is no probe, which would say whether a stack is causal: its class says it.
    masked = model_class.__name__ in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    kind: Kind = "encoder-self" if masked else "decoder-self"
    return class_of_task(hf, HeadMap({kind: (1,)}))


def shell_of(model_class: Any, config: Any) -> Any:
    """A model without its weights."""
    make = getattr(model_class, "from_config", None) or model_class._from_config
    with torch.device("meta"):
        return make(config)


def config_of(source: str) -> Any:
    """A model's configuration, without what would make transformers fetch code: it may name an attention function of
    the hub (`_attn_implementation = "owner/name"`), or one for which transformers takes a kernel of the hub."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    for each in (config, *sub_configs(config)):
        if getattr(each, "_attn_implementation", None) not in OWN_ATTENTION:
            each._attn_implementation = None  # as usual for the model's class
        each.return_dict = True  # outputs are read by their names
        if hasattr(each, MARK):
            delattr(each, MARK)  # of the folder, not of the model
    return config


def refuse_code(source: str) -> None:
    """A model that brings its own code, which headwise never runs, is refused before anything is loaded."""
    values, _ = PretrainedConfig.get_config_dict(source)
    # A class that transformers has does without the code, which is then never fetched.
    if "auto_map" in values and values.get("model_type") not in CONFIG_MAPPING:
        raise HeadwiseError(
            f"{source} brings Python code of its own for its {values.get('model_type', 'model')}, which headwise does "
            "not run: give a model of a class that transformers has."
        )


def warn_of_code(source: str, hf: PreTrainedModel) -> None:
    """Warn of a model whose folder names a class of its own: as a class of transformers it may compute something else."""
    named = getattr(hf.config, "auto_map", None)
    classes = []
    for auto, place in named.items() if isinstance(named, dict) else ():
        if auto.startswith("AutoModel") and isinstance(place, str):
            classes.append(place.rpartition(".")[2])
    # Many folders still name the class that transformers has taken over.
    own = [name for name in classes if not hasattr(transformers, name)]
    if own:
        warnings.warn(
            f"{source} brings Python code of its own ({few_names(own)}), which headwise does not run: it is loaded as a "
            f"{type(hf).__name__} of transformers, which may compute something else.",
            stacklevel=4,
        )


def fetched(repo: str) -> Path:
    """The folder of a pruned model from a hub: the files that its SHA256SUMS lists, without exports."""
    folder = Path(hf_hub_download(repo, SUMS)).parent
    return Path(snapshot_download(repo, allow_patterns=[SUMS, *Folder(folder).files]))


def freeze_as_built(hf: PreTrainedModel) -> PreTrainedModel:
    """Freeze the parameters that the model class freezes. `from_pretrained` makes all of them trainable, Marian's
    sinusoidal positions too, which are neither saved nor loaded."""
    with torch.device("meta"):
        built = type(hf)(hf.config)
    for name, parameter in built.named_parameters():
        if not parameter.requires_grad:
            hf.get_parameter(name).requires_grad_(False)
    return hf


def layout_of_config(source: str, config: Any) -> HeadMask | None:
    """The layout in a configuration; None for a whole model."""
    layout = getattr(config, "headwise_layout", None)
    if layout is None:
        return None
    try:
        return HeadMask.from_json(layout)
    except HeadwiseError as error:
        raise HeadwiseError(f"The layout in {source} cannot be used: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HeadwiseError(
            f"The layout in {source} is none ({type(error).__name__}: {end_of_sentence(error)}): copy or save the model "
            "again."
        ) from None


def class_of_config(source: str, config: Any) -> Any:
    """The class that a configuration names, with its head; without a name, an auto class."""
    if not config.architectures:
        return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModel
    name = config.architectures[0]
    # Not by auto class, which would leave out the output layer of a language model.
    model_class: Any = getattr(transformers, name, None)
    if name == MarianToolkitModel.__name__:
        model_class = MarianToolkitModel
    is_model = isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)
    # `PreTrainedModel` itself has no class of configuration.
    if not is_model or not isinstance(config, model_class.config_class or ()):
        raise HeadwiseError(
            f"{source} is said to be a {name} of type {config.model_type}, which this version of transformers does not "
            "have: correct architectures in its config.json."
        )
    return model_class


def refuse_wrong_counts(source: str, config: Any) -> None:
    """Raise HeadwiseError for a configuration of so many layers that building them takes minutes, or without heads."""
    for each in (config, *sub_configs(config)):
        for name in HEAD_COUNTS:
            count = getattr(each, name, None)
            if isinstance(count, int) and count < 1:
                raise HeadwiseError(
                    f"{source} is said to have {name} = {count}, and a layer has at least one head: correct config.json."
                )
        for name in LAYERS:
            count = getattr(each, name, None)
            if isinstance(count, int | float) and not 0 <= count <= DEEPEST:
                raise HeadwiseError(
                    f"{source} cannot be loaded: its configuration declares {name} = {count}, and headwise expects at "
                    f"most {DEEPEST}."
                )


def refuse_other_weights(path: Path, config: Any, model_class: Any) -> None:
    """Raise HeadwiseError for a configuration that declares far more layers or numbers than the weights have, and for a
    tokenizer of a size that none has: by headers and sizes of files, before anything is in memory."""
    for name in TOKENIZERS:
        size = (path / name).stat().st_size if (path / name).is_file() else 0
        if size > LARGEST_TOKENIZER:
            raise HeadwiseError(
                f"{path / name} has {size:,} bytes, and a tokenizer has at most {LARGEST_TOKENIZER:,}: copy it again."
            )

    # transformers puts an adapter that lies beside the weights into the model, or says nothing without that package
    if (path / "adapter_config.json").is_file() and not is_peft_available():
        raise HeadwiseError(
            f"{path} has an adapter of PEFT beside its weights, which needs peft: pip install peft, or merge it "
            "(merge_and_unload) and save the merged model."
        )
    files = [file for file in weight_files(path) if file.is_file()]
    if not files and any(path.glob("*.bin*")):
        return  # these have no headers
    try:
        shapes = {name: shape for _, name, shape, _ in stored_weights(files)}
    except SafetensorError:
        return  # loading the weights says what is damaged
    stored = sum(shape.numel() for shape in shapes.values())
    # The names of layers' weights have the layer's number between two dots.
    # `model.layers.11.mlp…` is of a model of twelve layers at least.
    numbers = [int(number) for name in shapes for number in re.findall(r"\.(\d{1,9})\.", name)]
    layers = max(numbers, default=-1) + 1

    for each in (config, *sub_configs(config)):
        for name in LAYERS:
            count = getattr(each, name, None)
            # ALBERT and others run one layer many times, but none more than MANY_LAYERS times.
            if isinstance(count, int) and count > max(MANY_LAYERS, layers):
                raise HeadwiseError(
                    f"{path} is said to have {name} = {count}, but its weights are of {layers} layers: correct config.json."
                )
    if not files:
        return
    shell = shell_of(model_class, config)
    tensors = [*shell.parameters(), *shell.buffers()]
    numbers = sum(tensor.numel() for tensor in tensors)
    if numbers > HARMLESS + OFTEN * stored:
        raise HeadwiseError(
            f"{path} is said to have {numbers:,} numbers, but its file has {stored:,}: correct the sizes in config.json, "
            "such as vocab_size or max_position_embeddings."
        )


def refuse_length(source: str, settings: Any) -> None:
    """Raise HeadwiseError where the length of the longest translation is not a number of tokens."""
    longest = getattr(settings, "max_length", None)
    if longest is not None and (type(longest) is not int or longest < 1):
        raise HeadwiseError(
            f"max_length in {source}/generation_config.json is {longest!r:.60}, which is no number of tokens: mend that "
            "file."
        )


def number_type_of(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The type of weights, by its name or as torch has it."""
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype not in (None, *DTYPES):
        raise HeadwiseError(
            f"The type {dtype} was asked for{did_you_mean(dtype, DTYPES)}: give {', '.join(DTYPES)}, or leave it out."
        )
    return None if dtype is None else getattr(torch, dtype)


def load_whole(
    source: str, config: Any, model_class: Any, dtype: torch.dtype | None, device_map: Any
) -> Any:
    """A model with all its heads. Raises HeadwiseError when the class drops weights of the file, or lacks some."""
    options: dict[str, Any] = {}
    if device_map is not None:
        options = {"device_map": device_map, "offload_folder": scratch()}
    hf, _ = from_files(source, config, model_class, dtype, options)
    return hf


def from_files(
    source: str, config: Any, model_class: Any, dtype: torch.dtype | None, options: dict[str, Any]
) -> tuple[Any, set[str]]:
    """What `from_pretrained` makes, and the names of weights that have another size in the files, where the options let
    it go on. Raises HeadwiseError when the class drops weights of the file, or lacks some."""
    if dtype is not None:
        options = {**options, "dtype": dtype}
    with warnings.catch_warnings():
        # About names of tensors, which transformers takes nevertheless.
        warnings.filterwarnings("ignore", "The following device_map keys")
        hf, info = model_class.from_pretrained(
            source, config=config, output_loading_info=True, trust_remote_code=False, **options
        )
    hf = drop_unused(freeze_as_built(hf))
    tensors = hf.state_dict()
    other_size = {name for name, *_ in info["mismatched_keys"]}
    # Transformers also names weights of modules that `drop_unused` has removed.
    missing = [name for name in sorted(info["missing_keys"]) if name in tensors]
    # What nothing reads may be missing; another size is the caller's to judge.
    missing = [name for name in missing if not UNUSED.search(name) and name not in other_size]
    dropped = sorted(info["unexpected_keys"])
    wrong = [name for name in dropped if not UNUSED.search(name)]
    if missing:
        remedy = "Download or save the model again."
        if wrong:  # of a model inside another one, such as `module.` of DataParallel
            remedy = (
                f"It has others ({few_names(wrong)}): save the transformers model that is inside what was saved "
                "(save_pretrained), or name its class as architectures in its config.json."
            )
        raise HeadwiseError(
            f"{source} lacks weights of its {type(hf).__name__} ({few_names(missing)}): they would be random. {remedy}"
        )
    if wrong and getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise HeadwiseError(
            f"{source} has relative positions (position_embedding_type in its config.json), which the "
            f"{type(hf).__name__} of transformers 5 does not compute: use transformers 4 for it."
        )
    if wrong:
        raise HeadwiseError(
            f"{source} has weights for which its {type(hf).__name__} has no place ({few_names(wrong)}): name the class "
            "that has them as architectures in its config.json."
        )
    if dropped:
        warnings.warn(
            f"{source}: {type(hf).__name__} has no place for {few_names(dropped)}.", stacklevel=5
        )
    if two := other_start(hf):
        warnings.warn(f"{source}: {two}", stacklevel=5)
    return hf, other_size


def load_cut(
    source: str, path: Path, config: Any, model_class: Any, dtype: torch.dtype | None, cut: Any
) -> tuple[Any, HeadMask]:
    """A model that `prune_heads` of transformers 4 made, and its layout. cut: `pruned_heads` of its configuration, the
    removed heads of each layer, {"0": [1]}, which transformers 5 no longer reads.

    Raises HeadwiseError for heads that the model does not have, and for weights that do not fit.
    """
    says = f"pruned_heads in {source}/config.json"
    if not path.exists():
        path = Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors", "*.bin"]))
    config.pruned_heads = {}
    try:
        # The weights of the cut layers come below.
        options = {"ignore_mismatched_sizes": True}
        stock, other_size = from_files(str(path), config, model_class, dtype, options)
        heads = discover(stock, allow_partial=True).heads
        (kind, *others) = heads.kinds
        if others:
            raise HeadwiseError(
                f"{says}: of an encoder-decoder it does not say whose heads they are; load the model that it was made from."
            )
        gone = [
            Head(kind, int(layer), int(head)) for layer, row in dict(cut).items() for head in row
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise HeadwiseError(
            f'{says} must give the removed heads of each layer, such as {{"0": [1, 2]}} ({error}): correct it.'
        ) from None
    if unknown := [head for head in gone if head not in heads]:
        raise HeadwiseError(
            f"{says} names head {unknown[0].head} of layer {unknown[0].layer}, and the model has {describe(heads)}: "
            "correct it."
        )
    layout = HeadMask(heads, frozenset(set(heads) - set(gone)))
    smaller: Any = smaller_copy(stock, discover(stock, allow_partial=True), layout)
    own = smaller.state_dict(keep_vars=True)
    stored = stored_tensors(path)
    for name in sorted(other_size):
        # Files may lack the name of the model's base, or have it where the model does not.
        tensor = next((stored[each] for each in stored if same_end(each, name)), None)
        if tensor is not None and isinstance(layer_of_weight(stock, name), Conv1D):
            tensor = tensor.T  # of GPT-2 cut layers are linear
        if tensor is None or name not in own or tensor.shape != own[name].shape:
            raise HeadwiseError(
                f"The weights in {source} do not fit its pruned_heads: {name} has another size than they leave. Copy or "
                "save the model again."
            )
        own[name].data = tensor.to(own[name].dtype)
    return smaller, layout


def layer_of_weight(model: Any, name: str) -> Any:
    """The layer that has a weight of two dimensions; None for a bias."""
    module, _, last = name.rpartition(".")
    return model.get_submodule(module) if last == "weight" else None


def same_end(name: str, other: str) -> bool:
    """Whether two names of a weight differ at most in what stands before the shorter."""
    return f".{name}".endswith(f".{other}") or f".{other}".endswith(f".{name}")


def stored_tensors(path: Path) -> dict[str, Tensor]:
    """All weights in the files of a folder, by name."""
    tensors: dict[str, Tensor] = {}
    files = [file for file in weight_files(path) if file.is_file()]
    for file in files or sorted(path.glob("pytorch_model*.bin")):
        if file.suffix == ".bin":
            tensors |= torch.load(file, map_location="cpu", weights_only=True)
        else:
            tensors |= load_file(file)
    return tensors


def load_pruned(
    path: Path,
    config: Any,
    model_class: Any,
    layout: HeadMask,
    dtype: torch.dtype | None,
    offloaded: str | None,
) -> Any:
    """A pruned model: build the stock one, remove heads by the layout, load the weights.

    The layout lists the heads that were seen, so a partial map is accepted. offloaded: the device that computes, if
    the weights are to stay in their files.
    """
    if not config.architectures:
        raise HeadwiseError(
            f"The configuration in {path} names no class (architectures): copy or save the model again."
        )
    config.headwise_layout = None  # the stock model has all heads
    try:
        refuse_too_large(path, config, model_class)
        if offloaded is None:
            stock = drop_unused(model_class._from_config(config)).eval()
        else:
            stock = meta_model(config, model_class, offloaded)
        smaller: Any = smaller_copy(stock, discover(stock, allow_partial=True), layout)
        if offloaded is None:
            tensors: dict[str, Tensor] = {}
            for file in weight_files(path):
                tensors.update(load_file(file))
            wrong = fill_weights(smaller, tensors)
        else:
            wrong = read_from(smaller, weight_files(path), dtype)
    except HeadwiseError as error:
        raise HeadwiseError(f"{path} cannot be pruned to its layout. {error}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        if "allocate" in str(error):
            raise  # `load` says what to do when memory is short
        raise HeadwiseError(
            f"The weights in {path} do not fit its layout: {end_of_sentence(error)}. Copy or save the model again."
        ) from error
    if wrong:
        raise HeadwiseError(
            f"The weights in {path} do not fit its layout: {few_names(wrong)} missing or unknown. Copy or save the model "
            "again."
        )
    return smaller if dtype is None or offloaded else smaller.to(dtype)


def refuse_too_large(path: Path, config: Any, model_class: Any) -> None:
    """Raise HeadwiseError for a configuration with far more weights than the file, before memory is taken for them."""
    with torch.device("meta"):
        declared = sum(parameter.numel() for parameter in model_class(config).parameters())
    stored = sum(shape.numel() for _, _, shape, _ in stored_weights(weight_files(path)))
    if declared > HARMLESS + OFTEN * stored:
        raise HeadwiseError(
            f"Its configuration declares {declared:,} weights, but the file has {stored:,}: copy or save the model again."
        )


def fill_weights(model: Any, weights: Mapping[str, Tensor]) -> list[str]:
    """Load weights, each in its own type; returns the names that are missing or unknown.

    weights: under the names they have in the model, or in the hub's files, as `save_pretrained` writes them.
    """
    own = model.state_dict(
        keep_vars=True
    )  # the parameters themselves, so that tied weights are one object
    if not weights.keys() <= own.keys():
        own_names = {id(tensor): name for name, tensor in own.items()}
        renamed = {}
        for name, tensor in revert_weight_conversion(model, dict(own)).items():
            renamed[name] = own_names.get(id(tensor), name)
        weights = {renamed.get(name, name): tensor for name, tensor in weights.items()}

    shared = weights.keys() & own.keys()
    # Some layers keep float32 in a model of half precision; `load_state_dict` would convert them.
    for name in shared:
        own[name].data = own[name].data.to(weights[name].dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    loaded = {id(own[name]) for name in shared}  # a tied weight is in the file once
    absent = {name for name in missing if id(own[name]) not in loaded}
    # What `save_pretrained` leaves out on purpose is not missing.
    return sorted({*absent, *unexpected} - set(model._keys_to_ignore_on_save or ()))


def is_finite(tensor: Tensor) -> Tensor:
    """Whether all numbers are finite, as one truth value on the device; without a copy of an embedding's size."""
    if tensor.numel() == 0 or tensor.itemsize == 1:  # types of one byte have no order in torch
        return tensor.isfinite().all()
    return torch.stack(torch.aminmax(tensor.detach())).isfinite().all()


def refuse_unfit(source: str, hf: PreTrainedModel, tokenizer: Any) -> None:
    """Raise HeadwiseError for weights that are not finite numbers, a tokenizer with more words than the model, and chat
    templates with the name of a path."""
    finite = {name: is_finite(tensor) for name, tensor in named_weights(hf)}
    # One stack, so that a GPU is waited for once.
    if not bool(torch.stack([flag.to(device_of(hf)) for flag in finite.values()]).all()):
        name = next(name for name, flag in finite.items() if not flag)
        raise HeadwiseError(
            f"{source} is damaged: weights in {name} are not finite numbers. Copy or save it again."
        )
    words = None
    # CANINE reads letters, and its class has no table of words to give.
    with suppress(NotImplementedError):
        words = getattr(hf.get_input_embeddings(), "num_embeddings", None)
    # Else an id without an embedding stops the work in the middle of a text.
    if tokenizer is not None and words is not None and len(tokenizer) > words:
        raise HeadwiseError(
            f"The tokenizer in {source} has {len(tokenizer):,} words, the model {words:,}: it is another model's, "
            "whose own belongs there, or tokens were added without hf.resize_token_embeddings(len(tokenizer))."
        )
    if tokenizer is not None:
        reads_text = hf.main_input_name == "input_ids"  # speech is padded by its feature extractor
        refuse_tokenizer(source, tokenizer, hf.config.is_encoder_decoder and reads_text)
    # `save_pretrained` writes each template to a file of its name.
    templates = getattr(tokenizer, "chat_template", None)
    for name in templates if isinstance(templates, dict) else ():
        if Path(name).name != name:
            raise HeadwiseError(
                f"The tokenizer in {source} has a chat template named {name[:50]!r}: a name cannot be a path."
            )


def refuse_tokenizer(source: str, tokenizer: Any, translates: bool) -> None:
    """Raise HeadwiseError for settings with which a tokenizer could not read a text, or a model translate it."""
    settings = "tokenizer_config.json"
    refuse_wordless(source, tokenizer)
    if "input_ids" not in tokenizer.model_input_names:
        raise HeadwiseError(
            f"The tokenizer in {source} gives {tokenizer.model_input_names!r:.60}, without input_ids: correct "
            f"model_input_names in its {settings}."
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise HeadwiseError(
            f"The tokenizer in {source} gives {tokenizer.model_max_length!r:.60} as model_max_length, which is no number "
            f"of tokens: correct its {settings}."
        )
    if translates and tokenizer.pad_token_id is None:
        raise HeadwiseError(
            f"The tokenizer in {source} has no padding token, which sentences of several lengths need: name it as "
            f"pad_token in its {settings}."
        )
    try:
        # Tokenizers look up their special tokens late, in the middle of a text.
        _ = tokenizer.all_special_ids, tokenizer.unk_token_id
        if translates:
            read = tokenizer(["a", "b c"])["input_ids"]
            tokenizer.pad({"input_ids": read})
            tokenizer.batch_decode(read, skip_special_tokens=True)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise HeadwiseError(
            f"The tokenizer in {source} cannot read a sentence ({end_of_sentence(error)}): mend its {settings}."
        ) from error


def end_of_sentence(error: Exception) -> str:
    """An error of a library, as the end of a sentence."""
    # The message of a KeyError is only the key, and says nothing without the error's name.
    name = type(error).__name__
    says_enough = isinstance(error, OSError | ValueError | RuntimeError)
    if isinstance(error, RecursionError) or not says_enough:
        return " ".join(f"{name} {error}".split())[:300]
    return " ".join(str(error).split())[:300] or name
