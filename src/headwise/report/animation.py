"""The animation of gates as a file: GIF or MP4."""

from __future__ import annotations

import importlib
import io
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import vl_convert
from PIL import Image

from headwise.errors import HeadwiseError
from headwise.grid import GAP, HeadGrid, Scale, svg_text
from headwise.heads import HeadMap, write_bytes
from headwise.report.run import read_run
from headwise.report.sections.gates import RATE, Film, films, frame_steps
from headwise.report.words import KIND_NAMES
from headwise.theme import LIGHT

HOLD = 2  # seconds for which the last frame stays
CELL, PAD, WIDE = 20, 24, 1000  # pixels: of a head with its gap, of margins, of a line of models
BLOCK = 16  # video wants widths and heights that are multiples of this


def animate(run: Path, path: Path) -> Path:
    """Write the animation of a run folder's gates to a file: a GIF (`.gif`) or a video (`.mp4`).

    Raises HeadwiseError for another ending, for a run without gates, and when `.mp4` lacks imageio-ffmpeg
    (`pip install "headwise[video]"`).
    """
    path = Path(path)
    writers = {".gif": _gif, ".mp4": _mp4}
    if path.suffix.lower() not in writers:
        raise HeadwiseError(
            f"The animation cannot be written to {path}: name a file that ends in .gif or .mp4."
        )
    found = read_run(Path(run))
    shown = films(found)
    if not shown:
        raise HeadwiseError(
            f"There is no animation of {run}: no gates were trained there (gates/*.csv). Prune with gates first."
        )
    write_bytes(path, writers[path.suffix.lower()](_pictures(shown, frame_steps(shown))))
    return path


def _gif(pictures: Iterator[Image.Image]) -> bytes:
    """All frames with the colours of the first and the last, forever from the beginning."""
    frames = list(pictures)
    both = Image.new("RGB", (frames[0].width, 2 * frames[0].height))
    both.paste(frames[0], (0, 0))
    both.paste(frames[-1], (0, frames[0].height))
    colours = both.quantize(256)
    flat = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    times = [1000 // RATE] * (len(flat) - 1) + [1000 * HOLD]
    file = io.BytesIO()
    flat[0].save(file, "GIF", save_all=True, append_images=flat[1:], duration=times, loop=0)
    return file.getvalue()


def _mp4(pictures: Iterator[Image.Image]) -> bytes:
    """H.264 in MP4, by the ffmpeg that imageio-ffmpeg brings along."""
    try:
        ffmpeg = importlib.import_module("imageio_ffmpeg")
    except ImportError:
        raise HeadwiseError(
            'An .mp4 needs imageio-ffmpeg, which is not installed: pip install "headwise[video]", or name a .gif.'
        ) from None
    frames = list(pictures)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "gates.mp4"
        writer = ffmpeg.write_frames(str(made), frames[0].size, fps=RATE, macro_block_size=BLOCK)
        writer.send(None)
        for frame in frames + [frames[-1]] * (HOLD * RATE):
            writer.send(frame.tobytes())
        writer.close()
        return made.read_bytes()


def _pictures(shown: list[Film], steps: list[int]) -> Iterator[Image.Image]:
    """The frames as pictures, one a step."""
    values = [film.at(steps) for film in shown]
    for at, step in enumerate(steps):
        drawing = _drawing(shown, [rows[at] for rows in values], step, at / max(1, len(steps) - 1))
        yield Image.open(io.BytesIO(vl_convert.svg_to_png(drawing))).convert("RGB")


def _drawing(shown: list[Film], now: list[np.ndarray], step: int, share: float) -> str:
    """One frame as SVG: the models side by side, each under its name, and how far training is."""
    widths, heights = [], []
    for film in shown:
        widths.append(max(count for _, layers in film.grids for count in layers) * CELL)
        heights.append(sum(len(layers) * CELL + PAD for _, layers in film.grids) + PAD)
    width = max(*widths, 190) + PAD
    height = max(heights) + PAD
    columns = max(1, min(len(shown), (WIDE - PAD) // width))
    lines = math.ceil(len(shown) / columns)
    right = _whole_blocks(max(PAD + columns * width, 480))
    bottom = _whole_blocks(86 + lines * height)
    across = right - 2 * PAD
    done = f"{share * across:.1f}"
    parts = [
        f'<rect width="{right}" height="{bottom}" fill="{LIGHT["card"]}"/>',
        svg_text(PAD, 34, f"Gates through training: step {step:,}", LIGHT["ink"], 18, 600),
        f'<rect x="{PAD}" y="48" width="{across}" height="3" fill="{LIGHT["line"]}"/>',
        f'<rect x="{PAD}" y="48" width="{done}" height="3" fill="{LIGHT["accent"]}"/>',
    ]
    for i, (film, opened) in enumerate(zip(shown, now, strict=True)):
        parts += _map(film, opened, PAD + i % columns * width, 84 + i // columns * height)
    size = f'width="{right}" height="{bottom}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def _whole_blocks(pixels: int) -> int:
    return math.ceil(pixels / BLOCK) * BLOCK


def _map(film: Film, opened: np.ndarray, left: int, top: int) -> list[str]:
    """One model: the surer a gate is open, the fuller its square; framed where the head is kept in the end."""
    values = dict(zip(film.heads, opened.tolist(), strict=True))
    grid = HeadGrid(
        HeadMap.smallest(values), values=values, scale=Scale(colours="opening"), framed=film.kept
    )
    label = film.model["label"]
    is_open = f"{opened.sum():.1f} of {len(film.heads)} open"
    parts = [
        svg_text(left, top, label, LIGHT["ink"], 14, 600),
        svg_text(left, top + 17, is_open, LIGHT["muted"]),
    ]
    top += PAD
    for kind, layers in film.grids:
        if len(film.grids) > 1:
            parts.append(svg_text(left, top + 15, KIND_NAMES[kind], LIGHT["muted"], 11))
            top += PAD - 4
        parts += grid.squares(kind, left, top, CELL - GAP)
        top += len(layers) * CELL
    return parts
