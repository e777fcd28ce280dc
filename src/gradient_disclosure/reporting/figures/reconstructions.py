"""What the reconstruction attacks saw: originals above, attacks below, one block a moment."""

from __future__ import annotations

from matplotlib.figure import Figure

from gradient_disclosure.reporting.figures.pixels import displayable, place_image
from gradient_disclosure.reporting.figures.style import INK, MUTED, VERMILION, new_figure
from gradient_disclosure.reporting.formatting import fixed
from gradient_disclosure.reporting.formatting import shown as formatted
from gradient_disclosure.reporting.record import MOMENTS, ReconstructionRecord, RunRecord
from gradient_disclosure.reporting.vocabulary import MOMENTS_IN_WORDS, attack_in_words

_NAMES, _SIDE, _STEP_X, _STEP_Y, _HEADING, _MARGIN = 0.98, 0.72, 0.84, 0.98, 0.36, 0.1
_WIDTH, _FOOT = 9.0, 0.25
_MOST = 8


def reconstruction_figure(record: RunRecord) -> Figure | None:
    """Grid of originals and reconstructions at every moment, with the SSIM under each.

    Args:
        record: the run. Where a defense did not release an example's gradient, the cell says 'not released'.

    Returns:
        The figure; None without reconstructions.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> record = RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())
        >>> reconstruction_figure(record) is None
        True
    """
    if not record.reconstructions:
        return None
    attacked = list(dict.fromkeys(item.index for item in record.reconstructions))
    indices = attacked[:_MOST]
    attacks = list(dict.fromkeys(item.attack for item in record.reconstructions))
    moments = [moment for moment in MOMENTS if any(item.moment == moment for item in record.reconstructions)]
    block_width = _NAMES + len(indices) * _STEP_X + _MARGIN
    block_height = _HEADING + (1 + len(attacks)) * _STEP_Y + _MARGIN
    across = 2 if 2 * block_width <= _WIDTH and len(moments) > 1 else 1
    down = -(-len(moments) // across)
    figure = new_figure(_WIDTH, down * block_height + _FOOT)
    figure.text(_MARGIN / _WIDTH, 0.08 / figure.get_size_inches()[1], _foot(indices, attacked), fontsize=8, color=MUTED)
    for position, moment in enumerate(moments):
        row, column = divmod(position, across)
        corner = (column * _WIDTH / across + _MARGIN, (down - row) * block_height + _FOOT)
        _block(figure, record, moment, attacks, indices, corner)
    return figure


def _foot(shown: list[int], attacked: list[int]) -> str:
    return f"The first {len(shown)} of the {len(attacked)} examples attacked." if len(shown) < len(attacked) else ""


def _block(
    figure: Figure,
    record: RunRecord,
    moment: str,
    attacks: list[str],
    indices: list[int],
    corner: tuple[float, float],
) -> None:
    width, height = figure.get_size_inches()
    left, top = corner
    heading = MOMENTS_IN_WORDS[moment]
    figure.text(left / width, (top - 0.22) / height, heading, fontsize=9.5, fontweight="bold", color=INK)
    items = {(item.attack, item.index): item for item in record.reconstructions if item.moment == moment}
    originals = {item.index: item for item in items.values()}
    for row, attack in enumerate(("original", *attacks)):
        bottom = top - _HEADING - row * _STEP_Y - _SIDE
        failed = record.results.get(f"attack/{attack}/working") is False
        name = attack_in_words(attack).replace(" ", "\n") + ("\nattack\nnot working" if failed else "")
        figure.text(
            left / width,
            (bottom + _SIDE / 2) / height,
            name,
            fontsize=8.5,
            color=VERMILION if failed else INK,
            va="center",
        )
        for column, index in enumerate(indices):
            box = (left + _NAMES + column * _STEP_X, bottom, _SIDE)
            if attack == "original":
                _original(figure, record, originals.get(index), box)
            else:
                _reconstruction(figure, record, items.get((attack, index)), box)


def _original(
    figure: Figure, record: RunRecord, item: ReconstructionRecord | None, box: tuple[float, float, float]
) -> None:
    if item is None or record.value_range is None:
        place_image(figure, None, box, "not\nattacked")
        return
    place_image(figure, displayable(item.original, record.value_range), box, f"example {item.index}")


def _reconstruction(
    figure: Figure, record: RunRecord, item: ReconstructionRecord | None, box: tuple[float, float, float]
) -> None:
    if item is None or record.value_range is None:
        place_image(figure, None, box, "not\nattacked")
    elif item.reconstructed is None:
        place_image(figure, None, box, "not\nreleased")
    else:
        caption = f"SSIM {formatted(item.metrics.get('ssim'), fixed)}"
        place_image(figure, displayable(item.reconstructed, record.value_range), box, caption)
